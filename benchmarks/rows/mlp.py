"""Overhead-dominated: 100 devices with 100 images each, an MLP of 784-64-10: four small steps a device."""

from __future__ import annotations

from pathlib import Path

from benchmarks.comparison import compare_with_loops
from benchmarks.sizes import Sizes
from benchmarks.table import Line


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Target: at most 0.9 times the plain loop with one thread."""
    return compare_with_loops("mlp", folder, sizes.mlp, sizes.n_rounds, {("plain", 1): 0.90})
