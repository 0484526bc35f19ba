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
    total = np.full(x.shape, 4, np.uint16)  # so that the quotient is rounded
    for row, column in np.ndindex(3, 3):
        total += wide[:, row : row + height, column : column + width]
    return (total // 9).astype(np.uint8)


def own_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a copy that can be written; of a memory-mapped file only the pages that are written take memory."""
    base: object = array.base  # that of a view is another array, and its offset is not the view's
    if isinstance(array, np.memmap) and array.filename and array.flags.c_contiguous and isinstance(base, mmap.mmap):
        mapped: npt.NDArray[Any] = np.memmap(array.filename, array.dtype, "c", int(array.offset), array.shape)
        return mapped
    return np.array(array)
