"""Exact summation of weighted tensors in fixed-point numbers.

A term `n * delta` is rounded to steps of 2^-g and accumulated as a whole number of steps in
float64. While every partial sum stays below 2^53 steps, each addition is exact, hence associative: the result depends
neither on the order of the terms nor on how the tiers group them.
"""

from __future__ import annotations

import math

import torch

from shared.core.errors import NotFinite, OutOfBound
from shared.core.tensor_records import Tensor

BLOCK = 65_536
"""Elements that are scaled and added at a time, few enough to stay in the cache."""


def fixed_point_exponent(total_weight: int, bound: float) -> int:
    """Returns the largest g at which sums of elements up to `bound`, with weights up to `total_weight`, are exact.

    60,000 samples and a bound of 2^7 give g = 30: steps of 1e-9.
    """
    weight_bits = (max(total_weight, 1) - 1).bit_length()  # ceil of the logarithm, exactly
    return 53 - weight_bits - math.ceil(math.log2(bound))


def check_bound(term: Tensor, bound: float, what: str, option: str | None = None) -> None:
    """Refuses a tensor that cannot be summed exactly; `option` is the field of a spec that says the bound.

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
        raise OutOfBound(
            f"{what} holds {max(low, high, key=abs):g}, sums are exact up to {bound:g}"
            + (f" (the spec's {option})" if option else "")
        )


def add_fixed_point(into: Tensor, term: Tensor, weight: int, exponent: int) -> None:
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


def check_fixed_point(steps: Tensor, limit: float, what: str) -> None:
    """Refuses a tensor that is not an exact sum, whose steps are whole and within the limit.

    Raises:
        NotFinite, OutOfBound: an element is not finite, no whole number, or beyond `limit`.
    """
    flat = steps.detach().reshape(-1)
    for begin in range(0, flat.numel(), BLOCK):
        block = flat[begin : begin + BLOCK]
        check_bound(block, limit, what)
        if torch.frac(block).count_nonzero():
            raise OutOfBound(f"{what} holds a fraction of a step")


def mean_from_fixed_point(steps: Tensor, weight: int | Tensor, exponent: int, dtype: torch.dtype) -> Tensor:
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
    """The scale is a power of two, so that dividing by it and the weight at once gives the same bits."""
    if isinstance(weight, Tensor):
        total = steps * 2.0**-exponent
        return torch.where(weight > 0, total / weight.clamp(min=1), torch.zeros_like(total))
    return steps / (weight * 2.0**exponent) if weight else torch.zeros_like(steps)
