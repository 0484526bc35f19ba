"""Wrong labels and bad images, see `FaultsSpec`; and copies of arrays into which they are written."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.specs import ImageFault, LabelFault

NOISE_SD = 64.0
"""Standard deviation of the noise, of values from 0 to 255."""


def wrong_labels(
    y: npt.NDArray[np.int64], n_classes: int, how: LabelFault, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Returns labels with a fault, (n,), each in 0..n_classes-1."""
    if how == "random":
        return rng.integers(n_classes, size=len(y))
    return n_classes - 1 - y if how == "flipped" else (y + 1) % n_classes


def bad_images(x: npt.NDArray[np.uint8], how: ImageFault, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Returns images with a fault, (n, height, width) or (n, height, width, channels), rounded to whole values.

    Noise is clipped to 0..255. Blur repeats the pixels at the border.
    """
    if how == "noise":
        return np.rint(np.clip(x + rng.normal(0, NOISE_SD, x.shape), 0, 255)).astype(np.uint8)
    _, height, width, *_ = x.shape
    wide = np.pad(x.astype(np.uint16), ((0, 0), (1, 1), (1, 1)) + ((0, 0),) * (x.ndim - 3), mode="edge")
    total = sum(wide[:, row : row + height, column : column + width] for row in range(3) for column in range(3))
    blurred: npt.NDArray[np.uint8] = ((total + 4) // 9).astype(np.uint8)
    return blurred


def own_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a copy that can be written; of a memory-mapped file only the pages that are written take memory."""
    if not (isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.flags.c_contiguous):
        return np.array(array)
    return np.memmap(array.filename, array.dtype, mode="c", offset=array.offset, shape=array.shape)
