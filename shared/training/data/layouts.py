"""Which axis of samples holds their channels: the first, as models of images and signals take it, or the last.

Images of bytes are stored with channels last, and reach models with channels first. Numbers are stored as models get
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.sources import DataMalformed
from shared.training.specs import Layout

COLOURS = (1, 3)
"""Numbers of channels of images of bytes."""


def images_channels_last(x: npt.NDArray[Any], layout: Layout | None) -> npt.NDArray[Any]:
    """Returns images of bytes with channels last: those that can only have them first are moved."""
    first = x.ndim == 4 and x.shape[1] in COLOURS
    if first and (layout == "channels_first" or (layout is None and x.shape[3] not in COLOURS)):
        return np.ascontiguousarray(np.moveaxis(x, 1, -1))
    if layout == "channels_first" and x.ndim == 4:
        return np.moveaxis(x, 1, -1)  # refused by their shape
    return x


def check_has_channels(x: npt.NDArray[Any], layout: Layout | None, masked: bool, what: str) -> None:
    """Checks that a layout can be said of samples.

    Raises:
        DataMalformed: they have no axis of channels.
    """
    if layout is not None and (x.dtype == np.int64 or (x.ndim < 3 and not masked)):
        raise DataMalformed(f"{what} has shape {x.shape} of {x.dtype}, without channels: data.layout is for others")


def channels_last(x: npt.NDArray[Any], layout: Layout | None) -> npt.NDArray[Any]:
    """Returns samples of numbers (n, ...) with channels last, if the layout says where they are."""
    return np.moveaxis(x, 1, -1) if layout == "channels_first" and x.ndim > 2 else x


def channels_first(x: npt.NDArray[Any], layout: Layout | None) -> npt.NDArray[Any]:
    """Returns samples with channels last as they are stored: with channels first, if the data have a layout."""
    return x if layout is None or x.ndim < 3 else np.ascontiguousarray(np.moveaxis(x, -1, 1))


def statistic_channels_last(value: npt.NDArray[Any], layout: Layout, n_axes: int) -> npt.NDArray[Any]:
    """Returns a mean or deviation with all axes of a sample, channels last; one axis alone is that of the channels."""
    if value.ndim <= 1 or value.ndim > n_axes:
        return value
    whole = value.reshape((1,) * (n_axes - value.ndim) + value.shape)
    return np.moveaxis(whole, 0, -1) if layout == "channels_first" else whole
