"""Elements of any size that float32 holds have exact sums in any order; all others keep the bits they have alone."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any

import pytest
import torch

from shared.core.errors import NotFinite, OutOfBound, WireError
from shared.core.records import Record
from shared.core.tensor_records import ModelState, TensorMap
from shared.core.update_annotations import MaskOf, Mean
from shared.federation.aggregation import Accumulator, FixedPoint, PartialSum, check_partial_sum, mean_of, weighted
from shared.wire import codec

WEIGHTS = [3, 1, 20_000, 17, 5_000, 2]


class Up(Record):
    delta: Annotated[ModelState, Mean()]
    length: Annotated[float, Mean()] = 0.0


class Masked(Record):
    delta: Annotated[ModelState, Mean(per_position="mask")]
    mask: Annotated[TensorMap, MaskOf()]


def fixed_point(total: int = 2**15, **more: Any) -> FixedPoint:
    return FixedPoint(total, buffer_names=frozenset({"var"}), **more)


def updates(seed: int = 0) -> list[Up]:
    """Parameters as usual, and variances from 1e-3 to 1e38, some near powers of two."""
    g = torch.Generator().manual_seed(seed)
    made = []
    for _ in WEIGHTS:
        var = 10 ** (41 * torch.rand(200, generator=g) - 3) * (1 - 2 * (torch.rand(200, generator=g) < 0.3).float())
        var[:8] = torch.tensor([4096.0, -4096, 4096.00049, 2.0**49, -(2.0**50), 3e38, 0, 2.0**87 + 2.0**70])
        made.append(Up(delta={"w": torch.randn(50, generator=g), "var": var}, length=float(seed + 1000)))
    return made


def total_of(terms: list[Up], *, order: list[int], cuts: tuple[int, ...] = (), steps: FixedPoint) -> PartialSum:
    """The sum of updates in an order, in groups that end at `cuts`."""
    whole, part = Accumulator(Up, steps), Accumulator(Up, steps)
    for place, at in enumerate(order):
        part.add(terms[at], WEIGHTS[at])
        if place in cuts:
            whole.merge(passed(part.result(), steps))
            part = Accumulator(Up, steps)
    whole.merge(passed(part.result(), steps))
    return whole.result()


def passed(partial_sum: PartialSum, steps: FixedPoint) -> PartialSum:
    """A sum as another tier gets it."""
    found = codec.decode(PartialSum, bytes(codec.encode(partial_sum).join()))
    check_partial_sum(found, Up, steps)
    return found


def exact_mean(terms: list[Up], name: str, exponent: int) -> list[float]:
    """By fractions: the mean of elements that are rounded to steps of 2^-exponent."""
    step, found = Fraction(2) ** exponent, []
    for at in range(terms[0].delta[name].numel()):
        whole = [round(Fraction(term.delta[name][at].item()) * step) for term in terms]
        found.append(float(sum(n * w for n, w in zip(whole, WEIGHTS, strict=True)) / step / sum(WEIGHTS)))
    return found


def test_sums_are_exact_in_any_order_and_grouping() -> None:
    terms, steps = updates(), fixed_point()
    whole = total_of(terms, order=[0, 1, 2, 3, 4, 5], steps=steps)
    body = bytes(codec.encode(whole).join())
    for order, cuts in (([5, 4, 3, 2, 1, 0], ()), ([2, 0, 5, 1, 4, 3], (0, 1, 3)), ([4, 5, 1, 3, 2, 0], (2,))):
        assert bytes(codec.encode(total_of(terms, order=order, cuts=cuts, steps=steps)).join()) == body
    mean: Any = mean_of(whole, Up, steps)
    for name in ("w", "var"):
        right = torch.tensor(exact_mean(terms, name, steps.exponent(name)), dtype=torch.float64)
        assert torch.equal(mean.delta[name], right.to(torch.float32))
    assert mean.length == pytest.approx(1000, rel=1e-15)


def test_the_factor_of_late_updates_reaches_all_digits() -> None:
    terms, steps = updates(), fixed_point(2**17)
    whole = total_of(terms, order=[0, 1, 2, 3, 4, 5], steps=steps)
    before: Any = mean_of(whole, Up, steps)
    after: Any = mean_of(weighted(whole, 3), Up, steps)
    assert torch.equal(before.delta["var"], after.delta["var"])


def test_usual_elements_have_the_sums_that_they_have_alone() -> None:
    small, steps = [term.replace(length=1.0) for term in updates()], fixed_point()
    for term in small:
        term.delta["var"].fmod_(4096)
    alone = total_of(small, order=[0, 1, 2, 3, 4, 5], steps=steps)
    assert alone.means["delta"].digits == {}
    assert b"digits" not in bytes(codec.encode(alone).join())
    small[2].delta["var"][9] = 1e30
    beside = total_of(small, order=[0, 1, 2, 3, 4, 5], steps=steps)
    assert sorted(beside.means["delta"].digits) == [2, 3]
    kept = torch.arange(200) != 9
    assert torch.equal(alone.means["delta"].sums["w"], beside.means["delta"].sums["w"])
    assert torch.equal(alone.means["delta"].sums["var"][kept], beside.means["delta"].sums["var"][kept])


def test_large_elements_are_averaged_by_position_too() -> None:
    steps = fixed_point()
    total = Accumulator(Masked, steps)
    for value, mask, weight in ((1e20, 1.0, 3), (3e20, 1.0, 1), (9e30, 0.0, 5)):
        tensors = {"delta": {"var": torch.tensor([value, 1.0])}, "mask": {"var": torch.tensor([mask, 1.0])}}
        total.add(Masked(**tensors), weight)
    mean: Any = mean_of(total.result(), Masked, steps)
    assert mean.delta["var"].tolist() == pytest.approx([1.5e20, 1.0], rel=1e-7)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 100.0])
def test_sums_of_float64_keep_its_digits(scale: float) -> None:
    g = torch.Generator().manual_seed(0)
    deltas = [scale * torch.rand(100, generator=g, dtype=torch.float64) for _ in WEIGHTS]
    steps = fixed_point(fine_names=frozenset({"w"}))
    total = Accumulator(Up, steps)
    for delta, weight in zip(deltas, WEIGHTS, strict=True):
        total.add(Up(delta={"w": delta}), weight)
    mean: Any = mean_of(passed(total.result(), steps), Up, steps, model={"w": deltas[0]})
    right = (torch.stack(deltas) * torch.tensor(WEIGHTS)[:, None]).sum(0) / sum(WEIGHTS)
    assert torch.allclose(mean.delta["w"], right, rtol=1e-14, atol=2**-66)


@pytest.mark.parametrize(
    ("bounds", "exponent", "unit"),
    [
        ({}, 53 - 15 - 7, None),
        ({"parameter_bound": 2.0**10}, 53 - 15 - 10, None),  # as fine as one range allows
        ({"parameter_bound": 2.0**60}, 14, 2.0**24),  # no coarser than 2^-14
        ({"parameter_bound": 1.0}, 53 - 15, None),
    ],
)
def test_a_larger_bound_has_steps_no_coarser_than_two_to_the_minus_14(
    bounds: dict[str, Any], exponent: int, unit: float | None
) -> None:
    steps = fixed_point(**bounds)
    assert (steps.exponent("w"), steps.unit("w")) == (exponent, unit)


@pytest.mark.parametrize(
    ("var", "error", "message"),
    [(math.inf, NotFinite, "delta var holds NaN or infinity"), (math.nan, NotFinite, "delta var holds NaN")],
)
def test_what_is_not_finite_is_refused_and_leaves_the_sum_alone(var: float, error: type, message: str) -> None:
    total = Accumulator(Up, fixed_point())
    total.add(updates()[0], 1)
    before = bytes(codec.encode(total.result()).join())
    with pytest.raises(error, match=message):
        total.add(Up(delta={"w": torch.zeros(50), "var": torch.full((200,), var)}), 1)
    assert bytes(codec.encode(total.result()).join()) == before


@pytest.mark.parametrize(
    ("digits", "error", "message"),
    [
        ({1: {"w": torch.zeros(50, dtype=torch.float64)}}, WireError, "digit 1 of delta w: there is none"),
        ({9: {"var": torch.zeros(200, dtype=torch.float64)}}, WireError, "digit 9 of delta var: there is none"),
        ({-1: {"var": torch.zeros(200, dtype=torch.float64)}}, WireError, "there is none"),
        ({0: {"var": torch.zeros(200, dtype=torch.float64)}}, WireError, "there is none"),
        ({1: {"var": torch.zeros(200)}}, WireError, "digit 1 of delta var is torch.float32"),
        ({1: {"var": torch.zeros(3, dtype=torch.float64)}}, WireError, r"is torch.float64 \(3,\)"),
        ({1: {"var": torch.full((200,), 2.0**40, dtype=torch.float64)}}, OutOfBound, "digit 1 of delta var"),
        ({1: {"var": torch.full((200,), 0.5, dtype=torch.float64)}}, OutOfBound, "a fraction of a step"),
    ],
)
def test_digits_that_cannot_be_are_refused(digits: Any, error: type[Exception], message: str) -> None:
    total = Accumulator(Up, fixed_point())
    total.add(updates()[0].replace(length=1.0), 1)
    found = total.result()
    forged = found.means["delta"].replace(digits=digits)
    with pytest.raises(error, match=message):
        check_partial_sum(found.replace(means={**found.means, "delta": forged}), Up, fixed_point())
