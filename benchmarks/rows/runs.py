"""Runs side by side against the same runs one after another: wall seconds of all of them, on the same processes."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.data import make_images
from benchmarks.federation import spec_of
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, timed
from benchmarks.turns import in_turns
from benchmarks.whole_runs import WholeRuns


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """No targets: two runs of one agent each, and eight runs of two."""
    job, n_rounds = sizes.runs
    make_images(folder / "data", job.data, job.n_devices * job.n_samples)
    spec: dict[str, Any] = {**spec_of(job), "num_rounds": n_rounds, "eval_every": n_rounds}
    found = []
    for n_runs, agents_each in sizes.runs_beside:
        turns = {
            at_a_time: WholeRuns(
                folder / f"{n_runs}-{at_a_time}",
                folder / "data",
                [{**spec, "seed": seed} for seed in range(n_runs)],
                {"CLOUD_MAX_CONCURRENT_RUNS": str(at_a_time)},
                edges=2,
                devices=job.n_devices * at_a_time,
                agents=agents_each * at_a_time,
            )
            for at_a_time in (1, n_runs)
        }
        try:
            seconds = in_turns({str(at_a_time): runs.train for at_a_time, runs in turns.items()}, sizes.n_rounds)
        finally:
            for runs in turns.values():
                runs.topology.stop()
        what = f"{n_runs} runs of {agents_each} agent{'s' if agents_each > 1 else ''}"
        found += [timed("runs", f"{what}, one after another", seconds["1"])]
        found += [timed("runs", f"{what}, side by side", seconds[str(n_runs)])]
        ratio = statistics.median(seconds[str(n_runs)]) / statistics.median(seconds["1"])
        found.append(at_most("runs", f"{what}: side by side / one after another", ratio, ""))
        same = {tuple(runs.digests) for runs in turns.values()}
        found.append(at_most("runs", f"{what}: different models", len(same) - 1, "", 0))
    return found
