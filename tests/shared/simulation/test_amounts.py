"""Each distribution compared with its formula, and invalid distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from shared.core.randomness import stream_seed
from shared.simulation import (
    LogNormal,
    LogNormalPart,
    Normal,
    Pareto,
    Quantity,
    Seeds,
    Uniform,
    Zipf,
    drawn,
    quantile,
    uniform01,
)
from shared.simulation.distributions import MAX_QUANTITY, scaled

N = 4000
PART = {"share": 0.5, "median": 1, "sigma": 1}
READ: TypeAdapter[Quantity] = TypeAdapter(Quantity)


def draws(amount: Quantity) -> list[float]:
    return [drawn(amount, _stream(n), "test") for n in range(N)]


def _stream(number: int) -> Seeds:
    return lambda purpose: stream_seed(f"{number}|{purpose}")


@pytest.mark.parametrize(
    ("amount", "formula"),
    [
        (Uniform(low=2, high=5), stats.uniform(2, 3)),
        (Normal(mean=100, sd=4), stats.norm(100, 4)),
        (Normal(mean=1, sd=2), stats.truncnorm(-0.5, np.inf, loc=1, scale=2)),
        (Normal(mean=0, sd=3), stats.halfnorm(scale=3)),
        (Pareto(shape=1.5, scale=100), stats.pareto(1.5, scale=100)),
        (LogNormal(median=200, sigma=0.8), stats.lognorm(0.8, scale=200)),
    ],
    ids=["uniform", "normal", "normal cut at 0", "half normal", "pareto", "log-normal"],
)
def test_draws_follow_the_distributions_formula(amount: Quantity, formula: stats.rv_continuous) -> None:
    found = draws(amount)
    assert stats.kstest(found, formula.cdf).pvalue > 1e-3
    for u in (0.001, 0.25, 0.5, 0.9, 0.999):
        assert quantile(amount, u) == pytest.approx(formula.ppf(u), rel=1e-6)


def test_a_mixture_of_log_normals_has_the_shares_of_its_parts() -> None:
    """Its quantiles invert the weighted sum of the parts' distribution functions, computed by scipy."""
    shares, medians, sigmas = (0.7, 0.25, 0.05), (5.0, 80.0, 1e4), (0.2, 0.5, 0.0)
    parts = [
        LogNormalPart(share=share, median=median, sigma=sigma)
        for share, median, sigma in zip(shares, medians, sigmas, strict=True)
    ]
    amount = LogNormal(parts=tuple(parts))

    def cdf(x: Any) -> Any:
        parts = zip(shares[:2], medians[:2], sigmas[:2], strict=True)
        smooth = [share * stats.lognorm(sigma, scale=median).cdf(x) for share, median, sigma in parts]
        return sum(smooth) + 0.05 * (np.asarray(x) >= 1e4)

    found = np.array(draws(amount))
    assert stats.kstest(found[found < 9999], lambda x: cdf(x) / 0.95).pvalue > 1e-3
    assert np.mean(found > 9999) == pytest.approx(0.05, abs=0.01)
    for u in (0.001, 0.3, 0.69, 0.71, 0.9, 0.949):
        assert cdf(quantile(amount, u)) == pytest.approx(u, rel=1e-9)
    assert quantile(amount, 0.97) == pytest.approx(1e4)
    doubled = scaled(amount, 2.0)
    assert [quantile(doubled, u) for u in (0.1, 0.8)] == pytest.approx([2 * quantile(amount, u) for u in (0.1, 0.8)])
    assert quantile(scaled(LogNormal(median=3, sigma=1), 2.0), 0.5) == pytest.approx(6)


def test_zipf_ranks_have_the_frequencies_of_their_power_law() -> None:
    found = draws(Zipf(exponent=1.2, n=6, scale=10))
    shares = np.array([k**-1.2 for k in range(1, 7)])
    expected = N * shares / shares.sum()
    counts = [found.count(10.0 * k) for k in range(1, 7)]
    assert sum(counts) == N
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    assert [quantile(Zipf(exponent=0, n=4), u) for u in (0.1, 0.3, 0.6, 0.99)] == [1, 2, 3, 4]


def test_no_draw_is_infinite_or_negative_and_a_plain_number_is_none() -> None:
    assert drawn(7.5, lambda purpose: pytest.fail(purpose), "test") == 7.5
    edges = (uniform01(0), uniform01(2**63 - 1))
    assert 0 < edges[0] < edges[1] < 1
    wide = (Pareto(shape=0.1, scale=1), LogNormal(median=1, sigma=100))
    for amount in (*wide, Normal(mean=0, sd=1), Normal(mean=1, sd=1e9), Uniform(low=0, high=1)):
        assert all(0 < quantile(amount, u) <= MAX_QUANTITY for u in edges)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"name": "paretto", "shape": 1, "scale": 1}, "did you mean 'pareto'"),
        ({"shape": 1, "scale": 1}, "distribution without a `name`"),
        ({"name": "uniform", "low": 3, "high": 1}, "low 3 is above high 1"),
        ({"name": "normal", "mean": 0, "sd": 0}, "is the number 0"),
        ({"name": "pareto", "shape": 0, "scale": 1}, "greater than or equal to 0.1"),
        ({"name": "zipf", "exponent": 1, "n": 10_001}, "less than or equal to 10000"),
        ({"name": "lognormal", "median": 1}, "`median` and `sigma` are required, or `parts`"),
        ({"name": "lognormal", "median": 1, "sigma": 1, "parts": [PART]}, "either `median` and `sigma`, or `parts`"),
        ({"name": "lognormal", "parts": [PART]}, "the shares of `parts` add up to 0.5, not to 1"),
        ({"name": "lognormal", "median": 0, "sigma": 1}, "greater than 0"),
        (-1, "greater than or equal to 0"),
        (float("inf"), "less than or equal to"),
        ("fast", "valid number"),
    ],
)
def test_invalid_amounts_are_refused(raw: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        READ.validate_python(raw)
