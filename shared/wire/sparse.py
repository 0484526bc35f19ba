"""Sparse tensors: the values at the kept positions, and the positions in few bits.

Positions are encoded as a bounding box plus, if the box is not full, one bit for each position in it, row by row. The
box has one bit for each index of each dimension: whether any position there is kept. It is all that a layer with fewer
units needs. The first bit says whether the bits of single positions follow.

    2 of 3 rows, 3 of 4 columns:               0 | 101 | 1101             one byte
    the same without one of these weights:     1 | 101 | 1101 | 111011    two bytes
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from shared.core.errors import WireError
from shared.core.tensor_records import Tensor


def positions_of(mask: Tensor) -> Tensor:
    """Returns the encoded positions at which a mask is not 0: uint8, (bytes,)."""
    kept = mask.detach().cpu().numpy() != 0
    axes = [kept.any(axis=tuple(other for other in range(kept.ndim) if other != dim)) for dim in range(kept.ndim)]
    box = kept[np.ix_(*axes)] if axes else kept
    within = [] if box.all() else [box.ravel()]
    bits = np.concatenate([np.array([bool(within)]), *axes, *within])
    return torch.from_numpy(np.packbits(bits))


def mask_of(positions: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns the mask with these encoded positions, bool.

    Raises:
        WireError: `positions_of` gives these bytes for no mask of that shape.
    """
    if positions.dtype != torch.uint8 or positions.dim() != 1:
        raise WireError(f"places are bytes, not {positions.dtype} {tuple(positions.shape)}")
    fault = f"{len(positions)} bytes do not say where a tensor of {tuple(shape)} has values"
    least = 1 + sum(shape)
    if not -(-least // 8) <= len(positions) <= -(-(least + math.prod(shape)) // 8):  # before memory is allocated
        raise WireError(fault)
    bits = np.unpackbits(positions.numpy()).view(bool)
    kept = np.zeros(tuple(shape), dtype=bool)
    axes = np.split(bits[1:least], np.cumsum(shape)[:-1]) if len(shape) else []
    sides = [int(axis.sum()) for axis in axes]
    inner = bits[least:][: math.prod(sides)]
    if not bits[0]:
        kept[np.ix_(*axes) if axes else ...] = True
    elif len(inner) == math.prod(sides):
        kept[np.ix_(*axes) if axes else ...] = inner.reshape(sides)
    mask = torch.from_numpy(kept)
    if not torch.equal(positions_of(mask), positions):
        raise WireError(fault)
    return mask


def n_bytes(mask: Tensor, element_size: int) -> int:
    """Returns the bytes in which a tensor with this mask travels: its kept values and their positions."""
    return int(mask.count_nonzero()) * element_size + positions_of(mask).numel()


def placed(values: Tensor, mask: Tensor) -> Tensor:
    """Returns a tensor with these values where the mask (bool) is true, and 0 elsewhere.

    Raises:
        WireError: the mask has more or fewer such positions.
    """
    if values.dim() != 1 or values.numel() != int(mask.sum()):
        raise WireError(f"{tuple(values.shape)} values for {int(mask.sum())} places")
    whole = torch.zeros(mask.shape, dtype=values.dtype)
    whole[mask] = values
    return whole
