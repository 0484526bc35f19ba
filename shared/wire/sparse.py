"""Tensors of which only some positions travel: their values, and in few bits where they are.

Where they are is told as a box and what is within it. For each dimension one bit an index says whether anything there
is kept; their product is the box, which is all that a layer with fewer units needs. Where parts of the box are left
out too, one bit a position of the box follows, row by row. The first bit of all says whether it does.

    2 of 3 rows, 3 of 4 columns:  0 | 101 | 1101                                        one byte
    and one weight of those left out:  1 | 101 | 1101 | 111011                          two bytes
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from shared.core.errors import WireError
from shared.core.records import Tensor

Bits = npt.NDArray[np.bool_]


def places_of(mask: Tensor) -> Tensor:
    """Where a mask is not 0: uint8, (bytes,)."""
    there = mask.detach().cpu().numpy() != 0
    lines = [there.any(axis=tuple(other for other in range(there.ndim) if other != dim)) for dim in range(there.ndim)]
    box = there[np.ix_(*lines)] if lines else there
    within = [] if box.all() else [box.ravel()]
    bits = np.concatenate([np.array([bool(within)]), *lines, *within])
    return torch.from_numpy(np.packbits(bits))


def mask_of(places: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of these bytes, bool.

    Raises:
        WireError: they are not what `places_of` makes of a mask of that shape.
    """
    if places.dtype != torch.uint8 or places.dim() != 1:
        raise WireError(f"places are bytes, not {places.dtype} {tuple(places.shape)}")
    told = f"{len(places)} bytes do not say where a tensor of {tuple(shape)} has values"
    least = 1 + sum(shape)
    if not -(-least // 8) <= len(places) <= -(-(least + math.prod(shape)) // 8):  # before memory is set aside
        raise WireError(told)
    bits = np.unpackbits(places.numpy()).view(bool)
    there = np.zeros(tuple(shape), dtype=bool)
    lines = np.split(bits[1:least], np.cumsum(shape)[:-1]) if len(shape) else []
    sides = [int(line.sum()) for line in lines]
    inner = bits[least:][: math.prod(sides)]
    if not bits[0]:
        there[np.ix_(*lines) if lines else ...] = True
    elif len(inner) == math.prod(sides):
        there[np.ix_(*lines) if lines else ...] = inner.reshape(sides)
    mask = torch.from_numpy(there)
    if not torch.equal(places_of(mask), places):
        raise WireError(told)
    return mask


def n_bytes(mask: Tensor, element_size: int) -> int:
    """Bytes of what travels of a tensor with this mask: its values and their places."""
    return int(mask.count_nonzero()) * element_size + places_of(mask).numel()


def placed(values: Tensor, mask: Tensor) -> Tensor:
    """These values where the mask, of bool, says; 0 elsewhere.

    Raises:
        WireError: there are more or fewer places.
    """
    if values.dim() != 1 or values.numel() != int(mask.sum()):
        raise WireError(f"{tuple(values.shape)} values for {int(mask.sum())} places")
    whole = torch.zeros(mask.shape, dtype=values.dtype)
    whole[mask] = values
    return whole
