"""`benchmarks.step_cost`: operations of a step, which are exact; seconds are only there."""

from __future__ import annotations

import pytest

from benchmarks.step_cost import Case, costs, names

TINY = Case(model="mlp", shape=(1, 8, 8), batch_size=8, n_batches=2)
FORWARD, HIDDEN, HEAD = 2 * (64 * 64 + 64 * 10), 2 * 64 * 64, 2 * 64 * 10
FEDAVG = FORWARD + HIDDEN + 2 * HEAD
"""Of an `mlp` and one sample: forward, and backward without the gradient of the image."""


def test_every_algorithm_that_differs_on_the_device_is_measured() -> None:
    assert {"fedbn", "feddc", "fedmix", "fedprox", "moon", "scaffold"} <= set(names())
    assert "fedavg" not in names()


@pytest.mark.parametrize(
    ("name", "extra"),
    [("fedprox", 0), ("scaffold", 0), ("feddc", 0), ("fedbn", 0), ("moon", 2 * HIDDEN)],
)
def test_operations_of_a_step_are_those_of_its_matrix_products(name: str, extra: int) -> None:
    """MOON's two other models only go as far as the representation."""
    (cost,) = costs([name], TINY, n_turns=1)
    assert cost.flops == pytest.approx((FEDAVG + extra) / FEDAVG)
    assert cost.seconds > 0


def test_fedmix_goes_back_to_the_image_and_once_more_through_that() -> None:
    (cost,) = costs(["fedmix"], TINY, n_turns=1)
    assert 1.5 < cost.flops < 3
