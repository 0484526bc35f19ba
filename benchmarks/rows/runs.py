"""Runs side by side against the same runs one after another: wall seconds of all of them, on the same processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.federation import READY_S, ROUND_S, spec_of
from benchmarks.loops import Job
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, timed
from benchmarks.turns import in_turns
from shared.run_records.runs import FINAL
from strata.api.client import Client
from strata.launcher.topology import Topology


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """No targets: two runs of one agent each, and eight runs of two."""
    job, n_rounds = sizes.runs
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    found = []
    for n_runs, agents_each in sizes.runs_beside:
        turns = {at_a_time: _Cloud(folder, job, n_rounds, n_runs, agents_each, at_a_time) for at_a_time in (1, n_runs)}
        try:
            seconds = in_turns({str(at_a_time): cloud.all for at_a_time, cloud in turns.items()}, sizes.n_rounds)
        finally:
            for cloud in turns.values():
                cloud.topology.stop()
        what = f"{n_runs} runs of {agents_each} agent{'s' if agents_each > 1 else ''}"
        found += [timed("runs", f"{what}, one after another", seconds["1"])]
        found += [timed("runs", f"{what}, side by side", seconds[str(n_runs)])]
        ratio = sorted(seconds[str(n_runs)])[len(seconds["1"]) // 2] / sorted(seconds["1"])[len(seconds["1"]) // 2]
        found.append(at_most("runs", f"{what}: side by side / one after another", ratio, ""))
        same = {tuple(cloud.digests) for cloud in turns.values()}
        found.append(at_most("runs", f"{what}: different models", len(same) - 1, "", 0))
    return found


class _Cloud:
    """A topology whose cloud trains some runs at a time."""

    def __init__(self, folder: Path, job: Job, n_rounds: int, n_runs: int, agents_each: int, at_a_time: int) -> None:
        self.job, self.n_rounds, self.n_runs = job, n_rounds, n_runs
        home = folder / f"{n_runs}-{at_a_time}"
        env = {"STRATA_DATA_DIR": str(folder / "data"), "STRATA_CACHE_DIR": str(home / "cache")}
        env |= {"CLOUD_MAX_CONCURRENT_RUNS": str(at_a_time), "CLOUD_SETTLE_S": "0"}
        agents, devices = agents_each * at_a_time, job.n_devices * at_a_time
        self.topology = Topology(edges=2, devices=devices, agents=agents, runs_dir=home / "runs", env=env).start()
        self.topology.wait_ready(READY_S)
        self.digests: list[str | None] = []

    def all(self) -> float:
        """Submits all runs and waits for their ends; returns the seconds."""
        began = time.monotonic()
        with Client(self.topology.url, timeout_s=ROUND_S) as client:
            spec: dict[str, Any] = {**spec_of(self.job), "num_rounds": self.n_rounds, "eval_every": self.n_rounds}
            runs = [client.create_run({**spec, "seed": seed}).run for seed in range(self.n_runs)]
            while any(client.run(run).status not in FINAL for run in runs):
                self.topology.check()
                time.sleep(0.02)
            seconds = time.monotonic() - began
            ended = [client.run(run) for run in runs]
        failed = [info.reason for info in ended if info.status != "completed"]
        if failed:
            raise RuntimeError(f"a run failed: {failed[0]}")
        self.digests = [info.model_sha256 for info in ended]
        return seconds
