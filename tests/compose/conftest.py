"""One stack for all tests in containers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.compose.stack import URL, compose, down, leftovers, n_devices, until


@pytest.fixture(scope="session")
def stack() -> Iterator[httpx2.Client]:
    """Redis, a cloud, two edges and six devices in containers; removed with their volumes at the end."""
    down()
    try:
        compose("up", "--build", "-d", "--scale", "device=6")
        with httpx2.Client(base_url=URL, timeout=30) as client:
            until("six registered devices", lambda: n_devices(client) == 6)
            yield client
    finally:
        down()
        assert leftovers() == []
