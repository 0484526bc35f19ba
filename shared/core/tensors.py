"""Tensor algebra over maps of tensors, and exact summation.

Exact summation: a term `n * delta` is rounded to steps of 2^-g and accumulated as a whole number of steps in
float64. While every partial sum stays below 2^53 steps, each addition is exact, hence associative: the result depends
neither on the order of the terms nor on how the tiers group them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from shared.core.errors import NotFinite, OutOfBound
from shared.core.tensor_records import Tensor, TensorMap

BLOCK = 65_536
"""Elements that are scaled and added at a time, few enough to stay in the cache."""


def subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> TensorMap:
    """Returns a - b for the names of `a`."""
    return {name: tensor - b[name] for name, tensor in a.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> TensorMap:
    """Returns a + b for the names in `b`, and `a` for its other names."""
    return {name: tensor + b[name] if name in b else tensor for name, tensor in a.items()}


def overlay(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> TensorMap:
    """Returns `a`, with the tensors of `b` in place of those of the same name."""
    return {name: b.get(name, tensor) for name, tensor in a.items()}


def only(a: Mapping[str, Tensor], names: Iterable[str]) -> TensorMap:
    """Returns the tensors of these names, in the order of `a`."""
    wanted = set(names)
    return {name: tensor for name, tensor in a.items() if name in wanted}


def without(a: Mapping[str, Tensor], names: Iterable[str]) -> TensorMap:
    """Returns the tensors of all other names."""
    unwanted = set(names)
    return {name: tensor for name, tensor in a.items() if name not in unwanted}


def owned(a: Mapping[str, Tensor]) -> TensorMap:
    """Returns copies in torch's own memory: views of a body must not be trained or evaluated."""
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in a.items()}


def n_bytes(a: Mapping[str, Tensor]) -> int:
    """Returns the bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in a.values())


def digest(a: Mapping[str, Tensor]) -> str:
    """Returns the digest of a model: sha256 over names (sorted), dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    for name in sorted(a):
        tensor = a[name]
        sha.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}\n".encode())
        sha.update(bytes_of(tensor))
    return sha.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns a tensor's bytes in row-major order; a view if it is contiguous."""
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def memory_of(tensor: Tensor) -> tuple[object, ...]:
    """Returns a key that identifies a tensor among those alive: its memory and layout; for an empty one its shape."""
    if not tensor.numel():  # without memory of its own
        return tensor.dtype, tuple(tensor.shape)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def fixed_point_exponent(total_weight: int, bound: float) -> int:
    """Returns the largest g at which sums of elements up to `bound`, with weights up to `total_weight`, are exact.

    60,000 samples and a bound of 2^7 give g = 30: steps of 1e-9.
    """
    weight_bits = (max(total_weight, 1) - 1).bit_length()  # ceil of the logarithm, exactly
    return 53 - weight_bits - math.ceil(math.log2(bound))


def check_bound(term: Tensor, bound: float, what: str) -> None:
    """Refuses a tensor that cannot be summed exactly.

    Raises:
        NotFinite: an element is NaN or infinite.
        OutOfBound: an element exceeds the bound.
    """
    if not term.numel():
        return
    low, high = (side.item() for side in torch.aminmax(term))
    if not math.isfinite(low) or not math.isfinite(high):
        raise NotFinite(f"{what} holds NaN or infinity")
    if max(-low, high) > bound:
        raise OutOfBound(f"{what} holds {max(low, high, key=abs):g}, sums are exact up to {bound:g}")


def add_in_steps(into: Tensor, term: Tensor, weight: int, exponent: int) -> None:
    """into += weight * round(term * 2^exponent), which is exact for a term that `check_bound` accepts.

    Args:
        into: float64, contiguous, whole numbers of steps.
        term: of the same shape, any float or integer dtype.
        weight: a whole number.
        exponent: g, for steps of 2^-g.
    """
    flat, acc = term.detach().reshape(-1), into.view(-1)
    if not flat.is_floating_point():
        flat = flat.to(torch.float64)
    elif flat.element_size() < 4:
        flat = flat.to(torch.float32)
    small = flat.numel() <= BLOCK  # as most are
    blocks = [(flat, acc)] if small else zip(torch.split(flat, BLOCK), torch.split(acc, BLOCK), strict=True)
    for block, sums in blocks:
        sums.add_((block * 2.0**exponent).round_(), alpha=weight)


def check_steps(steps: Tensor, limit: float, what: str) -> None:
    """Refuses a tensor that is no exact sum, whose steps are whole and within the limit.

    Raises:
        NotFinite, OutOfBound: an element is not finite, no whole number, or beyond `limit`.
    """
    flat = steps.detach().reshape(-1)
    for begin in range(0, flat.numel(), BLOCK):
        block = flat[begin : begin + BLOCK]
        check_bound(block, limit, what)
        if not torch.equal(block, block.round()):
            raise OutOfBound(f"{what} holds a fraction of a step")


def mean_of_steps(steps: Tensor, weight: int | Tensor, exponent: int, dtype: torch.dtype) -> Tensor:
    """Returns the mean `steps * 2^-exponent / weight`, 0 where the weight is 0, computed block by block."""
    if steps.numel() <= BLOCK:
        return _mean(steps, weight, exponent).to(dtype)
    mean, flat = torch.empty(steps.numel(), dtype=dtype), steps.reshape(-1)
    weights = weight.reshape(-1) if isinstance(weight, Tensor) else None
    for begin in range(0, flat.numel(), BLOCK):
        block = slice(begin, begin + BLOCK)
        mean[block] = _mean(flat[block], weight if weights is None else weights[block], exponent)
    return mean.reshape(steps.shape)


def _mean(steps: Tensor, weight: int | Tensor, exponent: int) -> Tensor:
    total = steps * 2.0**-exponent
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, total / weight.clamp(min=1), torch.zeros_like(total))
    return total / weight if weight else torch.zeros_like(total)
