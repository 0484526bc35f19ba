"""Mean and standard deviation."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest

from shared.training.data.moments import moments


@pytest.mark.parametrize("scale", [1.0, 1e300, 1e-300])
def test_moments_are_those_of_exact_arithmetic(scale: float) -> None:
    values = (1e6 + np.random.default_rng(0).normal(0, 1, 1001)) * scale
    exact = float(statistics.mean(map(Fraction, values.tolist())))
    mean, std = moments(values)
    assert mean == pytest.approx(exact, rel=1e-15)
    assert std == pytest.approx(math.sqrt(sum(((v - exact) / scale) ** 2 for v in values.tolist()) / 1001) * scale)


def test_ages_of_many_rows_have_their_mean() -> None:
    ages = np.tile(np.arange(20, 90, dtype=np.float64), 500_000 // 70)
    assert moments(ages) == pytest.approx((54.5, math.sqrt((70**2 - 1) / 12)), rel=1e-14)
    assert moments(np.full(1000, 0.1)) == (0.1, 0.0), "equal values have no deviation"
