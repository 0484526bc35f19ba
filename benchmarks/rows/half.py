"""Training step and upload of a sub-network of half the units, compared with the whole network."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.half_width import half
from benchmarks.sizes import Sizes
from benchmarks.table import Line


def lines(folder: Path, sizes: Sizes) -> Iterator[Line]:
    """A line for each model."""
    for case in sizes.half:
        found = half(case, sizes.n_rounds)
        ms = [1000 * seconds for seconds in found.spent]
        what = f"{case.model}: {found.operations:.2f} x operations, {found.upload:.2f} x bytes"
        yield Line("half", what, f"{statistics.median(ms):.2f} ms", f"{min(ms):.2f}-{max(ms):.2f}", found.seconds)
