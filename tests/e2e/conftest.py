"""An undisturbed topology, of another layout than those that are hurt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.soak.world import World

pytest.register_assert_rewrite("tests.e2e.real_faults")


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One agent with all devices; nobody hurts it."""
    with World(tmp_path_factory.mktemp("calm") / "world", edges=2, devices=4, agents=1, ttl_s=30) as world:
        yield world
