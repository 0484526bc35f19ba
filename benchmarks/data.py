"""Random data sets under the names of known ones, in a temporary folder: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

N_TEST = 100
"""Number of test images: few, since no evaluation takes place in a measured round."""
SHAPES = {"mnist": (28, 28), "cifar10": (32, 32, 3)}


def make_images(folder: Path, name: str, n_train: int) -> None:
    """Write `<name>.npz` with random images and labels into the folder that STRATA_DATA_DIR will name."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {}
    for part, n in (("train", n_train), ("test", N_TEST)):
        arrays[f"{part}_x"] = rng.integers(0, 256, (n, *SHAPES[name]), dtype=np.uint8)
        arrays[f"{part}_y"] = np.arange(n) % 10
    np.savez(folder / f"{name}.npz", **arrays)
