"""Numbers of float64 that float32 does not hold, such as Unix time: normalised before they are rounded, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.reading import Scale
from shared.training.data.sources import IMAGES, MASKS, Arrays, DataMalformed
from shared.training.specs import Layout

EXACT, COARSE = 1e-6, 1e-3
"""How far float32 may move a number: in deviations before it is normalised first, of the range before it is refused."""
BLOCK = 65_536
Array = npt.NDArray[Any]


def before_float32(arrays: Arrays, layout: Layout | None, where: str) -> tuple[Arrays, Scale | None]:
    """Returns arrays whose samples are normalised already where float32 would round them too much; others unchanged.

    The second value says by what they were normalised; None if they were not.

    Raises:
        DataMalformed: float32 does not tell them apart, and there are no `mean` and `std` by which to normalise.
    """
    samples = [arrays[key] for key in IMAGES]
    if any(x.dtype != np.float64 or x.ndim < 2 or not x.size for x in samples):
        return arrays, None
    if "mean" not in arrays or "std" not in arrays or MASKS[0] in arrays:
        _check_told_apart(samples[0], where)
        return arrays, None
    mean, std = (np.asarray(arrays[key], np.float64) for key in ("mean", "std"))
    if (layout == "channels_first" and std.ndim) or not all(_fits(value, samples[0]) for value in (mean, std)):
        _check_told_apart(samples[0], where)
        return arrays, None
    if all((_rounded(x) <= EXACT * std).all() for x in samples):
        return arrays, None
    done = {key: (x - mean) / std for key, x in zip(IMAGES, samples, strict=True)}
    scale = Scale(mean=mean.tolist(), std=std.tolist())
    return {**arrays, **done, "mean": np.array(0.0), "std": np.array(1.0)}, scale


def _check_told_apart(x: Array, where: str) -> None:
    span = x.max(0) - x.min(0)
    if (_rounded(x) > COARSE * span).any(where=span > 0):
        raise DataMalformed(
            f"{where}: train_x holds numbers, up to {np.abs(x).max():.10g}, whose differences float32 does not hold: "
            "save their mean and std, by which they are normalised in float64"
        )


def _rounded(x: Array) -> Array:
    """Returns by how much float32 moves the numbers of each place of a sample at most."""
    found = np.zeros(x.shape[1:])
    with np.errstate(all="ignore"):  # numbers beyond float32 become infinite here, and are refused elsewhere
        for begin in range(0, len(x), BLOCK):
            part = x[begin : begin + BLOCK]
            found = np.maximum(found, np.abs(part - part.astype(np.float32)).max(0))
    return found


def _fits(value: Array, x: Array) -> bool:
    try:
        return np.broadcast_shapes(value.shape, x.shape[1:]) == x.shape[1:]
    except ValueError:
        return False
