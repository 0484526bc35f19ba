"""A deployment without faults, whose layout differs from those with faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.soak.deployment import Deployment

pytest.register_assert_rewrite("tests.e2e.real_faults")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment without faults, in which one agent hosts all devices."""
    with Deployment(
        tmp_path_factory.mktemp("reference") / "deployment", edges=2, devices=4, agents=1, ttl_s=30
    ) as deployment:
        yield deployment
