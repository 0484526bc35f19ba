"""A round costs what its participants cost: the same number of devices train, of as many and of many more."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import Federation, federation, spec_of
from benchmarks.memory import monitored
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, compared, timed
from benchmarks.turns import in_turns


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Target: a round of few among many takes at most 1.3 times that of as many among themselves."""
    few, many = sizes.population
    runs: dict[int, Federation] = {}
    with ExitStack() as stack:
        for job in sizes.population:
            place = folder / str(job.n_devices)
            make_images(place / "data", job.data, job.n_devices * job.n_samples)
            spec = {**spec_of(job), "select": "random", "fraction_train": few.n_devices / job.n_devices}
            runs[job.n_devices] = stack.enter_context(federation(place, spec))
        seconds = in_turns({str(n): run.round for n, run in runs.items()}, sizes.n_rounds)
        with monitored(runs[many.n_devices].pids()) as peak:
            runs[many.n_devices].round()
    what = f"{few.n_devices} of {{}} devices, a round"
    ours, base = seconds[str(many.n_devices)], seconds[str(few.n_devices)]
    return [
        timed("population", what.format(many.n_devices), ours),
        compared("population", what.format(few.n_devices), base, ours, 1.3),
        at_most("population", f"{many.n_devices} devices, the first round", runs[many.n_devices].first_s, "s"),
        at_most("population", f"{many.n_devices} devices, peak memory (PSS)", peak.n_bytes / 1e9, "GB"),
    ]
