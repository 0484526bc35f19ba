"""A real Redis for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strata.launcher.redis_server import RedisServer, start_redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that do not stop it; its keys are not removed between tests."""
    with start_redis(tmp_path_factory.mktemp("redis"), fsync="no") as server:
        yield server
