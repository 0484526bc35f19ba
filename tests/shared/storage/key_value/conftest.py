"""The servers on which tests of what differs between Redis and Valkey run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shared.storage.key_value import RedisStore
from strata.launcher.redis_binary import bundled_servers


@pytest.fixture(params=["Valkey", "Redis"])
def each_product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has servers be of this product."""
    found = next((binary for binary in bundled_servers() if binary.product == request.param), None)
    if found is None:
        pytest.skip(f"no package with {request.param} is installed")
    monkeypatch.setenv("STRATA_REDIS_SERVER", str(found.path))


@pytest.fixture
async def open_store() -> AsyncIterator[Callable[..., RedisStore]]:
    """Opens stores, which are closed after the test; by default one is patient enough for a busy machine."""
    async with AsyncExitStack() as stack:

        def opened(url: str, **options: Any) -> RedisStore:
            store = RedisStore(url, **{"timeout_s": 60, **options})
            stack.push_async_callback(store.close)
            return store

        yield opened
