"""Small sets of digits that look different, as `.npz` files under the names of the real data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

Images = np.ndarray[Any, np.dtype[np.uint8]]
N_TRAIN, N_TEST = 200, 50
"""Numbers of training and test images of each set."""


def _coloured(x: Images, ink: tuple[int, int, int], ground: tuple[int, int, int]) -> Images:
    share = x[..., None] / 255
    made: Images = np.rint(share * np.array(ink) + (1 - share) * np.array(ground)).astype(np.uint8)
    return made


LOOKS: dict[str, Callable[[Images], Images]] = {
    "mnist": lambda x: x,
    "mnist_m": lambda x: _coloured(x, (250, 120, 30), (40, 90, 160)),
    "svhn": lambda x: _coloured(x, (90, 90, 120), (200, 180, 190)),
    "synth_digits": lambda x: _coloured(x, (20, 200, 60), (120, 30, 120)),
    "usps": lambda x: (60 + x // 3).astype(np.uint8),
}


def write_domains(folder: Path, names: tuple[str, ...] = tuple(LOOKS)) -> Path:
    """Write the sets; their images of scikit-learn's digits are disjoint."""
    folder.mkdir(exist_ok=True)
    x, y = load_digits(return_X_y=True)
    grey = np.rint(x.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    for number, (name, look) in enumerate(LOOKS.items()):
        if name not in names:
            continue
        begin = number * (N_TRAIN + N_TEST)
        train, test = slice(begin, begin + N_TRAIN), slice(begin + N_TRAIN, begin + N_TRAIN + N_TEST)
        images, labels = look(grey), y.astype(np.int64)
        arrays = {"train_x": images[train], "train_y": labels[train], "test_x": images[test], "test_y": labels[test]}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder
