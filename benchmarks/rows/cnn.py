"""Training-dominated: 20 devices with 600 MNIST-shaped images each, FedAvg's CNN of 582,026 parameters."""

from __future__ import annotations

from pathlib import Path

from benchmarks.comparison import compare_with_loops
from benchmarks.sizes import Sizes
from benchmarks.table import Line


def lines(folder: Path, sizes: Sizes) -> list[Line]:
    """Targets: at most 1.10 times the two-process loop with the same training code; 1.75 times as fast as Flower."""
    return compare_with_loops("cnn", folder, sizes.cnn, sizes.n_rounds, {("own", 2): 1.10, "flower": 1 / 1.75})
