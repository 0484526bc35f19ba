"""Runs of asynchronous devices with one agent and with two: whether visits in flight are computed beside each other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.federation import NEVER, READY_S, ROUND_S, spec_of
from benchmarks.loops import Job
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, timed
from benchmarks.turns import in_turns
from shared.run_records.runs import FINAL
from strata.api.client import Client
from strata.launcher.topology import Topology


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Target: two agents take at most 0.65 of the time of one."""
    job, n_rounds, buffer = sizes.in_flight
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    turns = {n_agents: _Cloud(folder, job, n_rounds, buffer, n_agents) for n_agents in (1, 2)}
    try:
        seconds = in_turns({str(n): cloud.run for n, cloud in turns.items()}, sizes.n_rounds)
    finally:
        for cloud in turns.values():
            cloud.topology.stop()
    what = f"{n_rounds} versions of {buffer} updates"
    found = [timed("in_flight", f"{what}: {n} agent{'s' if n > 1 else ''}", seconds[str(n)]) for n in turns]
    one, two = (sorted(seconds[str(n)])[len(seconds[str(n)]) // 2] for n in turns)
    found.append(at_most("in_flight", f"{what}: 2 agents / 1 agent", two / one, "", 0.65))
    same = {cloud.digest for cloud in turns.values()}
    found.append(at_most("in_flight", f"{what}: different models", len(same) - 1, "", 0))
    return found


class _Cloud:
    """A topology of one edge that trains asynchronous devices."""

    def __init__(self, folder: Path, job: Job, n_rounds: int, buffer: int, n_agents: int) -> None:
        slow = {"profile": {"delay_s": {"name": "pareto", "shape": 1.1, "scale": 1.0}}}
        sync = {"devices": {"mode": "asynchronous", "buffer": buffer, "staleness": "polynomial"}}
        fields = {"num_edges": 1, "num_rounds": n_rounds, "eval_every": NEVER, "devices": slow, "sync": sync}
        self.spec: dict[str, Any] = {**spec_of(job), **fields}
        home = folder / f"in-flight-{n_agents}"
        env = {"STRATA_DATA_DIR": str(folder / "data"), "STRATA_CACHE_DIR": str(home / "cache"), "CLOUD_SETTLE_S": "0"}
        runs_dir = home / "runs"
        self.topology = Topology(edges=1, devices=job.n_devices, agents=n_agents, runs_dir=runs_dir, env=env).start()
        self.topology.wait_ready(READY_S)
        self.digest: str | None = None

    def run(self) -> float:
        """Trains a run; returns the seconds from its submission to its end."""
        began = time.monotonic()
        with Client(self.topology.url, timeout_s=ROUND_S) as client:
            run = client.create_run(self.spec).run
            while client.run(run).status not in FINAL:
                self.topology.check()
                time.sleep(0.2)
            seconds, info = time.monotonic() - began, client.run(run)
        if info.status != "completed":
            raise RuntimeError(f"a run failed: {info.reason}")
        self.digest = info.model_sha256
        return seconds
