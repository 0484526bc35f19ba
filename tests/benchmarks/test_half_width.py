"""The costs of half the units: operations and bytes are exact; seconds are only checked for presence."""

from __future__ import annotations

import pytest

from benchmarks.half_width import half
from benchmarks.sizes import TINY


def test_half_the_neurons_of_an_mlp_cost_half_of_each_layer() -> None:
    """64 pixels, 32 of 64 neurons, 10 classes: values of 4 bytes, and for each tensor a bit an index and one more."""
    (case,) = TINY.half
    found = half(case, n_turns=1)
    assert found.operations == 0.5
    values, whole = 64 * 32 + 32 + 32 * 10 + 10, 64 * 64 + 64 + 64 * 10 + 10
    places = sum(-(-n_bits // 8) for n_bits in (1 + 64 + 64, 1 + 64, 1 + 10 + 64, 1 + 10))
    assert found.upload == pytest.approx((4 * values + places) / (4 * whole + places), rel=1e-12)
    assert found.seconds > 0
    assert len(found.spent) == 1
