"""The costs of a step: operations are exact; seconds are only checked for presence."""

from __future__ import annotations

import pytest

from benchmarks.rows.methods import METHODS
from benchmarks.sizes import TINY
from benchmarks.step_cost import Cost, costs

IMAGE, HIDDEN, CLASSES = 3 * 8 * 8, 64, 10
FIRST, HEAD = 2 * IMAGE * HIDDEN, 2 * HIDDEN * CLASSES
FEDAVG = 2 * FIRST + 3 * HEAD
"""Of an `mlp` and one sample: forward, and backward without the gradient of the image."""
SHARE = 13 / 16
"""Of a client's 16 samples, those on which LAFL-CPN learns W: 80 %, rounded."""


@pytest.fixture(scope="module")
def measured() -> dict[str, Cost]:
    """All methods, one turn."""
    (case,) = TINY.methods
    return {cost.name: cost for cost in costs(METHODS, case, n_turns=1)}


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        *[(name, 0) for name in ("fedavg", "fedprox", "scaffold", "feddc", "fedbn")],
        ("moon", 2 * FIRST),
        ("fedmix", 6 * (FIRST + HEAD) - FEDAVG),
        ("lafl_cpn", SHARE * FEDAVG),
    ],
)
def test_operations_of_a_step_are_those_of_its_matrix_products(
    name: str, extra: float, measured: dict[str, Cost]
) -> None:
    """MOON's two other models only go as far as the representation. FedMix goes forward, back to the image, through
    both of these again, and each of them has two products for a layer. One more pass learns W.
    """
    assert measured[name].operations == pytest.approx((FEDAVG + extra) / FEDAVG)


def test_each_sub_network_adds_less_than_a_step(measured: dict[str, Cost]) -> None:
    one, two, four = (measured[f"fedser n={n}"].operations for n in (1, 2, 4))
    assert 1.5 < one < 2
    assert one < two < 3 < four < 5


def test_every_method_has_its_seconds_relative_to_fedavg(measured: dict[str, Cost]) -> None:
    assert measured.keys() == METHODS.keys()
    assert all(len(cost.seconds) == 1 and cost.ratio > 0 for cost in measured.values())
    assert measured["fedavg"].ratio == 1
