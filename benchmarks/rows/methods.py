"""Cost of a training step of each method compared with FedAvg's: operations and seconds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.sizes import Sizes
from benchmarks.step_cost import costs
from benchmarks.table import Line

METHODS: dict[str, Any] = {
    **{name: name for name in ("fedavg", "fedprox", "scaffold", "fedbn", "moon", "feddc", "fedmix", "lafl_cpn")},
    **{f"fedser n={n}": {"name": "fedser", "params": {"n": n}} for n in (1, 2, 4)},
}
"""The `algorithm` field of a spec, by name; parameters that are not named have their defaults."""


def lines(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """A line for each method and model."""
    for case in sizes.methods:
        for cost in costs(METHODS, case, sizes.n_rounds):
            ms = [1000 * seconds for seconds in cost.seconds]
            what = f"{cost.name}, {case.model}: {cost.operations:.2f} x operations"
            yield Line("methods", what, f"{statistics.median(ms):.2f} ms", f"{min(ms):.2f}-{max(ms):.2f}", cost.ratio)
