"""Runs of asynchronous devices with one agent and with two: whether visits in flight are computed beside each other."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.federation import NEVER, spec_of
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, timed
from benchmarks.turns import in_turns
from benchmarks.whole_runs import WholeRuns


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Target: two agents take at most 0.65 of the time of one."""
    job, n_rounds, buffer = sizes.in_flight
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    slow = {"profile": {"delay_s": {"name": "pareto", "shape": 1.1, "scale": 1.0}}}
    sync = {"devices": {"mode": "asynchronous", "buffer": buffer, "staleness": "polynomial"}}
    fields = {"num_edges": 1, "num_rounds": n_rounds, "eval_every": NEVER, "devices": slow, "sync": sync}
    spec: dict[str, Any] = {**spec_of(job), **fields}
    turns = {
        n: WholeRuns(folder / f"{n}", folder / "data", [spec], {}, edges=1, devices=job.n_devices, agents=n)
        for n in (1, 2)
    }
    try:
        seconds = in_turns({str(n): runs.train for n, runs in turns.items()}, sizes.n_rounds)
    finally:
        for runs in turns.values():
            runs.topology.stop()
    what = f"{n_rounds} versions of {buffer} updates"
    found = [timed("in_flight", f"{what}: {n} agent{'s' if n > 1 else ''}", seconds[str(n)]) for n in turns]
    ratio = statistics.median(seconds["2"]) / statistics.median(seconds["1"])
    found.append(at_most("in_flight", f"{what}: 2 agents / 1 agent", ratio, "", 0.65))
    same = {tuple(runs.digests) for runs in turns.values()}
    found.append(at_most("in_flight", f"{what}: different models", len(same) - 1, "", 0))
    return found
