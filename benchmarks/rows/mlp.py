"""Overhead-dominated: 100 devices with 100 images each, an MLP of 784-64-10: four small steps a device."""

from __future__ import annotations

from pathlib import Path

from benchmarks.comparison import Variant, compare_with_loops
from benchmarks.sizes import Sizes
from benchmarks.table import Line

WIDTH = 25
"""Devices of a stack; it divides the 50 devices of an agent."""


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Targets: at most 0.9 times the plain loop with one thread, and 0.5 times with `vectorised`."""
    targets: dict[Variant, float] = {("plain", 1): 0.90}
    return compare_with_loops("mlp", folder, sizes.mlp, sizes.n_rounds, targets, width=WIDTH, most=0.50)
