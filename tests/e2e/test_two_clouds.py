"""Two clouds on one real Redis, as two `strata up` by mistake: one owns what is stored, the other stands by."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.core.errors import StrataError
from strata.api.client import Client
from strata.launcher.process import Process, end_all, execute
from strata.launcher.topology import Topology
from tests.e2e.browser import Visitor
from tests.fork_server import shared_fork_server
from tests.waits import HANG_S, PACED, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
LEASE_S = 6.0
SPEC = {"data": {"name": "digits", "n_train": 200, "n_test": 50}, "num_devices": 2, "num_edges": 1}


@contextmanager
def second_cloud(topology: Topology, folder: Path) -> Iterator[tuple[Process, str]]:
    """Another installation's cloud on the same Redis: its process and address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        env = {
            **os.environ,
            "CLOUD_REDIS_URL": topology.redis.url,
            "CLOUD_STATE_DIR": str(folder / "state"),
            "CLOUD_RUNS_DIR": str(folder / "runs"),
            "CLOUD_LEASE_S": str(LEASE_S),
            "STRATA_TIER_TOKEN": topology.tier_token,
        }
        cloud = execute("cloud-2", "cloud_server", env, folder / "cloud-2.log", {"CLOUD_FD": listener.fileno()})
    try:
        yield cloud, f"http://127.0.0.1:{port}"
    finally:
        end_all([cloud], 5.0)


def test_a_second_cloud_stands_by_until_the_first_is_gone_and_destroys_nothing(chromium: Any, tmp_path: Path) -> None:
    places: dict[str, Any] = {"runs_dir": tmp_path / "runs", "folder": tmp_path / "first"}
    env = {"CLOUD_LEASE_S": str(LEASE_S)}
    with Topology(edges=1, devices=2, agents=1, env=env, fork=shared_fork_server(), **places) as topology:
        topology.wait_ready(HANG_S)
        with Client(topology.url) as first:
            done = first.create_run({**SPEC, "num_rounds": 3}).run
            until("the end of the first run", lambda: first.run(done).status == "completed")
            running = first.create_run({**SPEC, **PACED, "num_rounds": 2000}).run
            until("rounds of the second run", lambda: first.run(running).rounds >= 3)
            with second_cloud(topology, tmp_path / "second") as (_, url), Client(url) as second:
                says = until("what the second cloud waits for", lambda: _not_ready(url))
                assert "this cloud stands by" in says
                with pytest.raises(StrataError, match="stands by") as refused:
                    second.create_run(SPEC)
                assert refused.value.status == 503
                window = Visitor(chromium, url)
                window.go("/runs").get_by_role("alert").filter(has_text="this cloud stands by").wait_for()
                window.window.close()
                before = first.run(running).rounds
                until("further rounds", lambda: first.run(running).rounds >= before + 3)
                assert (first.run(done).status, first.run(done).rounds) == ("completed", 3)

                topology.processes["cloud"].signal(signal.SIGKILL)
                until("the second cloud to take over", lambda: _stops(second, running))
                found = until("the completed run at the second cloud", lambda: _run(second, done))
                assert (found.status, found.rounds) == ("completed", 3)
                assert _run(second, running).rounds >= before + 3


def _not_ready(url: str) -> str:
    """What a cloud waits for; empty if it is ready or does not answer."""
    try:
        return "; ".join(httpx2.get(f"{url}/readyz", timeout=5).json()["missing"])
    except (httpx2.HTTPError, KeyError):
        return ""


def _stops(client: Client, run_id: str) -> bool:
    """Whether a cloud takes the order to stop a run, which only the owner does."""
    try:
        client.stop(run_id)
    except StrataError:
        return False
    return True


def _run(client: Client, run_id: str) -> Any:
    try:
        return client.run(run_id)
    except StrataError:
        return None
