"""Whole runs in a local topology of real processes: the seconds from their submission to the end of the last."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.federation import READY_S, ROUND_S
from benchmarks.forking import fork_server
from shared.run_records.runs import FINAL
from strata.api.client import Client
from strata.launcher.topology import Topology

POLL_S = 0.05


class WholeRuns:
    """A started topology that trains the same runs again and again.

    Args:
        home: folder of its caches and results.
        data: folder of the data sets.
        specs: of the runs, which are submitted at once.
        env: further variables of its processes.
        edges, devices, agents: of the topology.

    Attributes:
        digests: of the runs' models, after the last time.
    """

    def __init__(
        self,
        home: Path,
        data: Path,
        specs: Sequence[Mapping[str, Any]],
        env: Mapping[str, str],
        *,
        edges: int,
        devices: int,
        agents: int,
    ) -> None:
        self.specs = specs
        known = {"STRATA_DATA_DIR": str(data), "STRATA_CACHE_DIR": str(home / "cache"), "CLOUD_SETTLE_S": "0"}
        full, runs_dir = {**known, **env}, home / "runs"
        self.topology = Topology(
            edges=edges, devices=devices, agents=agents, runs_dir=runs_dir, env=full, fork=fork_server()
        ).start()
        self.topology.wait_ready(READY_S)
        self.digests: list[str | None] = []

    def train(self) -> float:
        """Submits the runs and waits for their ends; returns the seconds.

        Raises:
            RuntimeError: a run failed.
        """
        began = time.monotonic()
        with Client(self.topology.url, timeout_s=ROUND_S) as client:
            runs = [client.create_run(spec).run for spec in self.specs]
            while any(client.run(run).status not in FINAL for run in runs):
                self.topology.check()
                time.sleep(POLL_S)
            seconds = time.monotonic() - began
            ended = [client.run(run) for run in runs]
        failed = [info.reason for info in ended if info.status != "completed"]
        if failed:
            raise RuntimeError(f"a run failed: {failed[0]}")
        self.digests = [info.model_sha256 for info in ended]
        return seconds
