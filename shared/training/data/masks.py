"""Masks of sequences: which positions have content, and what the others become in samples as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.layouts import channels_first
from shared.training.data.sources import IMAGES, LABELS, MASKS, Arrays, DataMalformed
from shared.training.specs import Layout

Array = npt.NDArray[Any]


def apply_masks(found: Arrays, arrays: Arrays, padding: int | None, layout: Layout | None, where: str) -> None:
    """Writes masks into the samples, whose channels are last, and moves the channels where the layout has them.

    Args:
        found: samples and targets as they are stored; they are changed.
        arrays: as the source gave them.
        padding: the index of positions without content, of samples that are indices.
        layout: of the data.
        where: the data set, for messages.

    Raises:
        DataMalformed: one mask of two is missing, or has a wrong shape or value.
    """
    if (MASKS[0] in arrays) != (MASKS[1] in arrays):
        raise DataMalformed(f"{where}: {MASKS[0]} and {MASKS[1]} go together, one is missing")
    for samples, labels, mask in zip(IMAGES, LABELS, MASKS, strict=True):
        if mask in arrays:
            real = as_mask(arrays[mask], found[samples], f"{where}: {mask}")
            found[samples] = masked(found[samples], real, padding, where)
            y = found[labels]
            if found[samples].dtype == np.int64 and y.dtype == np.int64 and y.shape == real.shape:
                found[labels] = masked(y, real, padding, where)
        if found[samples].dtype == np.float32:
            found[samples] = channels_first(found[samples], layout)


def as_mask(mask: Array, x: Array, what: str) -> npt.NDArray[np.bool_]:
    """Returns the mask of samples (n, length, ...), bool (n, length).

    Raises:
        DataMalformed: it has a wrong shape or value.
    """
    if x.dtype == np.uint8 or mask.shape != x.shape[:2]:
        raise DataMalformed(f"{what} has shape {mask.shape}; masks are (n, length), for samples (n, length, ...)")
    if not np.isin(mask, (0, 1)).all():
        raise DataMalformed(f"{what} holds other values than 0 (padding) and 1")
    return mask.astype(np.bool_)


def masked(x: Array, real: npt.NDArray[np.bool_], padding: int | None, where: str) -> Array:
    """Returns samples with their mask: indices get the padding value, numbers one more channel, which is the mask.

    Args:
        x: int64, (n, length, ...), or float32 with channels last, (n, length) or (n, length, ..., channels).
        real: where they have content, (n, length).
        padding: the index of positions without content.
        where: the data set, for messages.

    Raises:
        DataMalformed: there is no padding value for indices.
    """
    if x.dtype == np.int64:
        if padding is None:
            raise DataMalformed(f"{where}: a mask of indices needs the key padding, the index of padded positions")
        return np.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), x, padding)
    channels = x[..., None] if x.ndim == 2 else x
    shown = real.reshape(*real.shape, *[1] * (channels.ndim - 2)).astype(np.float32)
    last = np.broadcast_to(shown, (*channels.shape[:-1], 1))
    return np.concatenate([channels * shown, last], axis=-1)
