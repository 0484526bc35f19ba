"""Exact summation in fixed-point numbers."""

from __future__ import annotations

import math

import pytest
import torch

from shared.core import exact_sum
from shared.core.errors import NotFinite, OutOfBound

EXPONENTS = {
    (60_000, 2.0**7): 30, (1, 1.0): 53, (0, 1.0): 53, (2, 1.0): 52, (3, 1.0): 51,
    (65_536, 2.0**7): 30, (65_537, 2.0**7): 29, (1, 0.5): 54, (1, 3.0): 51, (2**49 + 1, 1.0): 3,
}  # fmt: skip
"""Of a total weight and a bound of values."""


def test_the_step_is_the_finest_at_which_the_largest_sum_is_exact() -> None:
    assert {given: exact_sum.fixed_point_exponent(*given) for given in EXPONENTS} == EXPONENTS


def test_terms_of_any_dtype_size_and_stride_are_rounded_to_the_nearest_step_and_added_exactly() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool):
        into = torch.full((2,), 5.0, dtype=torch.float64)
        exact_sum.add_fixed_point(into, torch.tensor([1, 0]).to(dtype), 3, 4)
        assert into.tolist() == [5 + 3 * 16, 5]
    into = torch.zeros(4, dtype=torch.float64)
    exact_sum.add_fixed_point(into, torch.tensor([0.3, 0.3125, 0.375, -0.3]), 7, 2)  # steps of a quarter, ties to even
    assert into.tolist() == [7 * 1, 7 * 1, 7 * 2, -7], "rounded before it is weighted"
    n = exact_sum.BLOCK + 3
    term = torch.arange(2 * n, dtype=torch.float64).reshape(n, 2).T  # not contiguous
    into = torch.zeros(2, n, dtype=torch.float64)
    exact_sum.add_fixed_point(into, term, 2, 0)
    assert torch.equal(into, 2 * term)


def test_tensors_that_are_added_together_have_the_sums_that_they_have_one_by_one() -> None:
    draws = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (), (0,), (exact_sum.BLOCK,), (exact_sum.BLOCK + 1,)]
    terms = [torch.randn(shape, generator=draws) for shape in shapes]
    terms += [terms[0].T, terms[0].double(), terms[0].half(), (terms[0] > 0)]
    together, singly = ([torch.zeros(term.shape, dtype=torch.float64) for term in terms] for _ in range(2))
    for weight in (3, 59_999):
        exact_sum.add_all_fixed_point(together, terms, weight, 30)
        for into, term in zip(singly, terms, strict=True):
            exact_sum.add_fixed_point(into, term, weight, 30)
    assert all(map(torch.equal, together, singly))
    assert all(into.count_nonzero() for into in together if into.numel())


def test_the_mean_is_zero_where_the_weight_is_zero() -> None:
    steps = torch.tensor([6.0, 8.0, 0.0], dtype=torch.float64)
    assert exact_sum.mean_from_fixed_point(steps, 4, 1, torch.float32).tolist() == [0.75, 1, 0]
    assert exact_sum.mean_from_fixed_point(steps * 0, 0, 1, torch.float32).tolist() == [0, 0, 0]
    weights = torch.tensor([3.0, 2.0, 0.0], dtype=torch.float64)
    assert exact_sum.mean_from_fixed_point(steps, weights, 1, torch.float64).tolist() == [1, 2, 0]


@pytest.mark.parametrize(("weight", "exponent"), [(1, 30), (3, 30), (59_999, 30), (2**31 - 1, 15), (7, 54)])
def test_a_mean_has_the_bits_of_the_sum_in_numbers_divided_by_the_weight(weight: int, exponent: int) -> None:
    steps = torch.randint(-(2**53), 2**53, (exact_sum.BLOCK + 5,), generator=torch.Generator().manual_seed(weight))
    expected = [int(step) / 2**exponent / weight for step in steps[-50:]]  # both the scale and the sum are exact
    mean = exact_sum.mean_from_fixed_point(steps.to(torch.float64), weight, exponent, torch.float64)
    assert mean[-50:].tolist() == expected


def test_values_that_are_not_finite_or_beyond_the_bound_are_refused_by_name() -> None:
    exact_sum.check_bound(torch.tensor([10.0, -10.0]), 10, "w")
    exact_sum.check_bound(torch.zeros(0), 10, "w")
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(NotFinite, match="delta w holds NaN or infinity"):
            exact_sum.check_bound(torch.tensor([0.0, value, 1.0]), 10, "delta w")
    for value in (10.5, -10.5):
        with pytest.raises(OutOfBound, match=f"w holds {value}, at most 10"):
            exact_sum.check_bound(torch.tensor([value]), 10, "w")


def test_steps_are_whole_and_within_the_limit() -> None:
    exact_sum.check_fixed_point(torch.tensor([3.0, -3.0]), 3, "w")
    with pytest.raises(OutOfBound, match="a fraction of a step"):
        exact_sum.check_fixed_point(torch.tensor([2.0, -2.5]), 3, "w")
    with pytest.raises(OutOfBound, match="holds 4"):
        exact_sum.check_fixed_point(torch.cat([torch.zeros(exact_sum.BLOCK), torch.tensor([4.0])]), 3, "w")
    with pytest.raises(NotFinite):
        exact_sum.check_fixed_point(torch.tensor([math.nan]), 3, "w")
