"""Tensor algebra, and exact summation in fixed-point steps."""

from __future__ import annotations

import math

import pytest
import torch

from shared.core import tensors
from shared.core.errors import NotFinite, OutOfBound
from shared.core.tensor_records import TensorMap

A: TensorMap = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
B: TensorMap = {"w": torch.tensor([10.0, 20.0])}


def lists(found: TensorMap) -> dict[str, object]:
    return {name: tensor.tolist() for name, tensor in found.items()}


def test_the_algebra_goes_name_by_name() -> None:
    assert lists(tensors.subtract(B, A)) == {"w": [9, 18]}
    assert lists(tensors.add(A, B)) == {"w": [11, 22], "b": [3]}
    assert lists(tensors.overlay(A, B)) == {"w": [10, 20], "b": [3]}
    assert lists(tensors.only(A, ["b"])) == {"b": [3]}
    assert lists(tensors.without(A, ["b"])) == {"w": [1, 2]}
    assert tensors.n_bytes(A) == 12


def test_owned_tensors_share_no_memory_and_are_contiguous() -> None:
    grid = torch.arange(4.0).reshape(2, 2)
    mine = tensors.owned({"t": grid.T})["t"]
    grid[0, 1] = 9
    assert mine.tolist() == [[0, 2], [1, 3]]
    assert mine.is_contiguous()


# ---- the digest of a model


def test_golden_digest() -> None:
    # sha256 of b"w float32 (2,)\n" and the eight bytes of 1.0 and 2.0: by `printf ... | sha256sum`.
    assert tensors.digest({"w": torch.tensor([1.0, 2.0])}) == (
        "595e0ae447b69ef4c048935588c27a3769fb62126dd4fdf3f748a98490049c09"
    )


def test_the_digest_does_not_depend_on_order_or_memory_layout() -> None:
    assert tensors.digest(A) == tensors.digest(dict(reversed(A.items())))
    grid = torch.arange(6.0).reshape(2, 3)
    assert tensors.digest({"t": grid.T}) == tensors.digest({"t": grid.T.contiguous()})


@pytest.mark.parametrize(
    "other",
    [
        {"v": torch.tensor([1.0, 2.0])},
        {"w": torch.tensor([1.0, 2.5])},
        {"w": torch.tensor([[1.0, 2.0]])},
        {"w": torch.tensor([1.0, 2.0]).view(torch.int32)},
        {"w": torch.tensor([1.0]), "x": torch.tensor([2.0])},
    ],
    ids=["name", "bytes", "shape", "dtype", "split"],
)
def test_the_digest_depends_on(other: TensorMap) -> None:
    assert tensors.digest(other) != tensors.digest({"w": torch.tensor([1.0, 2.0])})


# ---- the grid


@pytest.mark.parametrize(
    ("total_weight", "bound", "exponent"),
    [
        (60_000, 2.0**7, 30),
        (1, 1.0, 53),
        (0, 1.0, 53),
        (2, 1.0, 52),
        (3, 1.0, 51),
        (65_536, 2.0**7, 30),
        (65_537, 2.0**7, 29),
        (1, 0.5, 54),
        (1, 3.0, 51),
        (2**49 + 1, 1.0, 3),
    ],
)
def test_the_grid_is_the_finest_on_which_the_largest_sum_is_exact(
    total_weight: int, bound: float, exponent: int
) -> None:
    assert tensors.fixed_point_exponent(total_weight, bound) == exponent


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
def test_terms_of_any_dtype_are_added_exactly(dtype: torch.dtype) -> None:
    into = torch.full((2,), 5.0, dtype=torch.float64)
    tensors.add_in_steps(into, torch.tensor([1, 0]).to(dtype), 3, 4)
    assert into.tolist() == [5 + 3 * 16, 5]


def test_a_term_is_rounded_to_the_nearest_step_before_it_is_weighted() -> None:
    into = torch.zeros(4, dtype=torch.float64)
    tensors.add_in_steps(into, torch.tensor([0.3, 0.3125, 0.375, -0.3]), 7, 2)  # steps of a quarter, ties to even
    assert into.tolist() == [7 * 1, 7 * 1, 7 * 2, -7]


def test_more_than_a_block_is_added_and_other_strides_are_heeded() -> None:
    n = tensors.BLOCK + 3
    term = torch.arange(2 * n, dtype=torch.float64).reshape(n, 2).T  # not contiguous
    into = torch.zeros(2, n, dtype=torch.float64)
    tensors.add_in_steps(into, term, 2, 0)
    assert torch.equal(into, 2 * term)


def test_the_mean_is_zero_where_nothing_weighs() -> None:
    steps = torch.tensor([6.0, 8.0, 0.0], dtype=torch.float64)
    assert tensors.mean_of_steps(steps, 4, 1, torch.float32).tolist() == [0.75, 1, 0]
    assert tensors.mean_of_steps(steps * 0, 0, 1, torch.float32).tolist() == [0, 0, 0]
    weights = torch.tensor([3.0, 2.0, 0.0], dtype=torch.float64)
    assert tensors.mean_of_steps(steps, weights, 1, torch.float64).tolist() == [1, 2, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(NotFinite, match="delta w holds NaN or infinity"):
        tensors.check_bound(torch.tensor([0.0, value, 1.0]), 10, "delta w")


@pytest.mark.parametrize("value", [10.5, -10.5])
def test_what_exceeds_the_bound_is_refused_by_name(value: float) -> None:
    with pytest.raises(OutOfBound, match=f"w holds {value}, sums are exact up to 10"):
        tensors.check_bound(torch.tensor([value]), 10, "w")


def test_the_bound_itself_passes_and_so_does_nothing() -> None:
    tensors.check_bound(torch.tensor([10.0, -10.0]), 10, "w")
    tensors.check_bound(torch.zeros(0), 10, "w")


def test_steps_are_whole_and_within_the_limit() -> None:
    tensors.check_steps(torch.tensor([3.0, -3.0]), 3, "w")
    with pytest.raises(OutOfBound, match="a fraction of a step"):
        tensors.check_steps(torch.tensor([2.5]), 3, "w")
    with pytest.raises(OutOfBound, match="holds 4"):
        tensors.check_steps(torch.cat([torch.zeros(tensors.BLOCK), torch.tensor([4.0])]), 3, "w")
    with pytest.raises(NotFinite):
        tensors.check_steps(torch.tensor([math.nan]), 3, "w")
