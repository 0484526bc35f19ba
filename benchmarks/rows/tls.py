"""The cost of secure mode: rounds over mutual TLS beside rounds without."""

from __future__ import annotations

from pathlib import Path

from benchmarks.sizes import Sizes
from benchmarks.table import Line
from benchmarks.two_ways import Way, of_two_ways


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Two lines for small models and for a large one."""
    return of_two_ways("tls", Way("over mutual TLS", secure=True), Way("without"), folder, sizes)
