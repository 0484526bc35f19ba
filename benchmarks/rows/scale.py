"""Many devices in two agents: time and memory against the number of devices."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.data import make_images
from benchmarks.federation import Federation, federation, spec_of
from benchmarks.loops import Job
from benchmarks.memory import monitored
from benchmarks.sizes import Sizes
from benchmarks.table import Line, at_most, timed
from benchmarks.turns import in_turns

LIMIT_GB = {1000: 3.0}


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Targets: time linear in the number of devices; 1,000 devices in less than 3 GB."""
    jobs = {n: Job("mnist", "mlp", n, sizes.scale_samples) for n in sizes.scale}
    found: list[Line] = []
    with ExitStack() as stack:
        runs: dict[str, Federation] = {}
        for n, job in jobs.items():
            make_images(folder / str(n) / "data", "mnist", n * job.n_samples)
            runs[str(n)] = stack.enter_context(federation(folder / str(n), spec_of(job)))
        seconds = in_turns({n: run.round for n, run in runs.items()}, sizes.n_rounds)
        for count, run in runs.items():
            found.append(timed("scale", f"{count} devices, a round", seconds[count]))
            with monitored(run.pids()) as peak:
                run.round()
            limit = LIMIT_GB.get(int(count))
            found.append(at_most("scale", f"{count} devices, peak memory (PSS)", peak.n_bytes / 1e9, "GB", limit))
    medians = {n: statistics.median(seconds[str(n)]) for n in sizes.scale[1:]}
    what = f"log-log slope from {sizes.scale[1]} to {sizes.scale[-1]} devices"
    return [*found, at_most("scale", what, slope(list(medians), list(medians.values())), "", 1.05)]


def slope(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """Returns the slope of the least-squares line through the logarithms; 1 means constant cost per device."""
    x, y = [math.log(n) for n in counts], [math.log(s) for s in seconds]
    return statistics.linear_regression(x, y).slope
