"""Stacks of tensors in memory: as many copies of a shape as there are devices, each of them aligned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED_BYTES = 64
"""Each place of a stack begins at a multiple of this; it is what torch's allocator gives a tensor of its own."""
ALIGNED_ROWS = 16
"""The rows of a device are padded to a multiple of this: with elements of 4 bytes, any number of columns is aligned."""


def empty_stack(width: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor (width, *shape) without values, whose places are contiguous and aligned."""
    n, step = math.prod(shape), max(ALIGNED_BYTES // dtype.itemsize, 1)
    memory = torch.empty(width, -(-n // step) * step, dtype=dtype, device=device)
    return memory[:, :n].view(width, *shape)


def stack_of(tensors: Sequence[Tensor], width: int, device: torch.device) -> Tensor:
    """Returns a stack of copies of these tensors; places beyond them hold the first."""
    first = tensors[0]
    stack = empty_stack(width, first.shape, first.dtype, device)
    if all(tensor is first for tensor in tensors):
        return stack.copy_(first.expand(stack.shape))
    for place, tensor in zip(stack, tensors, strict=False):
        place.copy_(tensor)
    stack[len(tensors) :] = first
    return stack


def padded_rows(largest: int, batch_size: int) -> int:
    """Returns the rows to which a device's batches are padded, from its largest batch and the size of a full one.

    It is a power of two from `ALIGNED_ROWS` on, or the full size, so that few numbers of rows occur. It depends on the
    device alone.
    """
    most = -(-max(batch_size, largest) // ALIGNED_ROWS) * ALIGNED_ROWS
    rows = ALIGNED_ROWS
    while rows < largest:
        rows *= 2
    return min(rows, most)
