"""A machine that is suspended during a run: all its processes stand still, and go on as if nothing had been."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.real_faults import GATED, completed_run, lost
from tests.soak.deployment import Deployment

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TTL_S = 3.0


def test_a_run_goes_on_after_a_suspend_that_is_longer_than_the_time_to_live(tmp_path: Path) -> None:
    with Deployment(tmp_path / "deployment", ttl_s=TTL_S) as deployment:
        with deployment.gate.closed(from_round=2) as gate:
            run = deployment.submit(GATED)
            gate.wait("agent-1", 2)
            pids = [process.pid for process in deployment.topology.processes.values()] + [deployment.topology.redis.pid]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(3 * TTL_S)  # the suspend itself
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        _, details, events = completed_run(deployment, run)
    assert lost(details) == {}
    assert not [event.data for event in events if event.kind == "node.lost"]
