"""The servers on which tests of what differs between Redis and Valkey run."""

from __future__ import annotations

import pytest

from strata.launcher.redis_binary import bundled_servers


@pytest.fixture(params=["Valkey", "Redis"])
def each_product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has servers be of this product."""
    found = next((binary for binary in bundled_servers() if binary.product == request.param), None)
    if found is None:
        pytest.skip(f"no package with {request.param} is installed")
    monkeypatch.setenv("STRATA_REDIS_SERVER", str(found.path))
