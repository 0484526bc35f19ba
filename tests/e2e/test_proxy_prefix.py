"""The dashboard below a path of a reverse proxy, and streams that a proxy must not hold back."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from strata.launcher.topology import Topology
from tests.fork_server import shared_fork_server
from tests.waits import HANG_S

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_pages_name_addresses_below_the_path_that_the_proxy_says(tmp_path: Path) -> None:
    with Topology(edges=1, devices=1, agents=1, runs_dir=tmp_path / "runs", fork=shared_fork_server()) as topology:
        topology.wait_ready(HANG_S)
        page = httpx2.get(f"{topology.url}/ui/", headers={"X-Forwarded-Prefix": "/lab/strata"}, timeout=HANG_S)
        spec = {"data": {"name": "digits", "n_train": 100, "n_test": 50}, "num_rounds": 1}
        run = httpx2.post(f"{topology.url}/runs", json={"spec": spec}, timeout=HANG_S).json()["run"]
        with httpx2.stream("GET", f"{topology.url}/runs/{run}/events", timeout=HANG_S) as stream:
            headers = dict(stream.headers)
    named = [address for address in re.findall(r'(?:src|href)="([^"]+)"', page.text) if not address.startswith("data:")]
    assert page.status_code == 200
    assert named
    assert [address for address in named if not address.startswith("/lab/strata/ui/")] == []
    assert headers["x-accel-buffering"] == "no"
    assert "no-store" in headers["cache-control"]
