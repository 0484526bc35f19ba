"""Exact summation of weighted tensors in fixed-point numbers.

A term `n * delta` is rounded to steps of 2^-g and accumulated as a whole number of steps in
float64. While every partial sum stays below 2^53 steps, each addition is exact, hence associative: the result depends
neither on the order of the terms nor on how the tiers group them.

An element beyond the range of these steps is cut into digits. The lowest is what remains of it below a unit, the others
count units, units times 2^b, and so on, where 2^b is so small that weighted sums of digits stay exact, too. Each digit
has a sum of its own. So no finite element is too large, and sums of those within the range are the same as alone. The
digit below the steps, -1, holds what rounding to steps takes from float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import compress

import torch

from shared.core.errors import NotFinite, OutOfBound
from shared.core.tensor_records import Tensor

BLOCK = 65_536
"""Elements that are scaled and added at a time, few enough to stay in the cache."""


def fixed_point_exponent(total_weight: int, bound: float) -> int:
    """Returns the largest g at which sums of elements up to `bound`, with weights up to `total_weight`, are exact.

    60,000 samples and a bound of 2^7 give g = 30: steps of 1e-9.
    """
    return digit_bits(total_weight) - math.ceil(math.log2(bound))


def digit_bits(total_weight: int) -> int:
    """Returns the largest b at which sums of whole numbers up to 2^b, with weights up to `total_weight`, are exact."""
    return 53 - (max(total_weight, 1) - 1).bit_length()  # less the ceil of the logarithm, exactly


def check_bound(term: Tensor, bound: float, what: str, option: str | None = None) -> None:
    """Refuses a tensor with an element that is not finite or too large; `option` is the spec's field with the bound.

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
        why = (
            f" by the spec's {option}: training diverges (a lower lr may help), or needs a larger bound"
            if option
            else ""
        )
        raise OutOfBound(f"{what} holds {max(low, high, key=abs):g}, at most {bound:g}{why}")


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


def add_all_fixed_point(into: list[Tensor], terms: list[Tensor], weight: int, exponent: int) -> None:
    """`add_fixed_point` for several tensors; small ones of float32, as most are, are added up in one call."""
    small = [term.dtype == torch.float32 and term.numel() <= BLOCK for term in terms]
    for sums, term, is_small in zip(into, terms, small, strict=True):
        if not is_small:
            add_fixed_point(sums, term, weight, exponent)
    if any(small):
        steps = torch._foreach_mul([term.detach() for term in compress(terms, small)], 2.0**exponent)
        torch._foreach_round_(steps)
        torch._foreach_add_([*compress(into, small)], steps, alpha=weight)


def exceeds(term: Tensor, most: float) -> bool:
    """Whether an element of a tensor is larger than this."""
    return bool(term.numel()) and max(abs(side.item()) for side in torch.aminmax(term)) > most


def digits_above(term: Tensor, unit: float, bits: int) -> tuple[Tensor, dict[int, Tensor]]:
    """Cuts a tensor into what is below a unit and digits of it, without rounding.

    Args:
        term: finite, any float dtype.
        unit: a power of two.
        bits: of a digit.

    Returns:
        float64: the rest, of the same sign and below the unit, and by number from 1 the digits that are not all 0:
        term = rest + sum of digits[j] unit 2^(bits (j - 1)).
    """
    whole = term.detach().to(torch.float64)
    rest = torch.fmod(whole, unit)
    left, number, digits = (whole - rest) / unit, 1, dict[int, Tensor]()
    while left.count_nonzero():
        digit = torch.fmod(left, 2.0**bits)
        if digit.count_nonzero():
            digits[number] = digit
        left, number = (left - digit) / 2.0**bits, number + 1
    return rest, digits


def digit_below(term: Tensor, exponent: int, bits: int) -> Tensor:
    """Returns, in steps of 2^-(exponent + bits), what rounding to steps of 2^-exponent takes from float64 elements."""
    steps = term.detach() * 2.0**exponent
    return (steps - steps.round()) * 2.0**bits


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


def mean_from_fixed_point(
    steps: Tensor,
    weight: int | Tensor,
    exponent: int,
    dtype: torch.dtype,
    digits: Mapping[int, Tensor] | None = None,
) -> Tensor:
    """Returns the mean `steps * 2^-exponent / weight`, 0 where the weight is 0, computed block by block.

    Args:
        steps: sums in steps.
        weight: of all elements, or of each.
        exponent: of a step.
        dtype: of the mean.
        digits: further sums, each by the exponent of its own steps.
    """
    if digits:
        parts = sorted({exponent: steps, **digits}.items())
        total = sum((part * 2.0**-own for own, part in parts[1:]), parts[0][1] * 2.0 ** -parts[0][0])
        return _mean(total, weight, 0).to(dtype)
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
