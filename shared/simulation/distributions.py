"""Quantities: a number, or a distribution from which one number is drawn.

A draw maps one uniform number through the distribution's quantile function, so that it depends on the stream's seed
alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from shared.core.records import Record
from shared.core.validation import check_known

Seeds = Callable[[str], int]
"""Maps a purpose to a 63-bit seed: the random streams of one seat, or of one of its visits."""
MAX_QUANTITY = 1e15
"""Upper bound on every draw; heavy tails end here."""
MIN_QUANTITY = 1e-6
"""Lower bound on quantities that something is divided by."""
MAX_SIGMA = 100.0
"""Upper bound on the deviation of a logarithm."""
MOST_PARTS = 20
"""Most parts of a mixture."""
Finite = Annotated[float, Field(ge=0, le=MAX_QUANTITY)]
_UNIT = NormalDist()


class Uniform(Record):
    """Uniform between `low` and `high`."""

    name: Literal["uniform"] = "uniform"
    low: Finite
    high: Finite

    @model_validator(mode="after")
    def _in_order(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


class Normal(Record):
    """Gaussian with this mean and standard deviation, truncated at 0."""

    name: Literal["normal"] = "normal"
    mean: Finite
    sd: Finite

    @model_validator(mode="after")
    def _can_be_positive(self) -> Normal:
        if not self.mean and not self.sd:
            raise ValueError("a normal distribution of mean 0 and sd 0 is the number 0")
        return self


class Pareto(Record):
    """Pareto of the first kind: P(X > x) = (scale / x)^shape from `scale` on."""

    name: Literal["pareto"] = "pareto"
    shape: Annotated[float, Field(ge=0.1, le=1000)]
    scale: Annotated[float, Field(gt=0, le=MAX_QUANTITY)]


class Zipf(Record):
    """`scale` times a rank k in 1..n with P(k) proportional to k^-exponent."""

    name: Literal["zipf"] = "zipf"
    exponent: Annotated[float, Field(ge=0, le=100)]
    n: Annotated[int, Field(ge=1, le=10_000)] = 100
    scale: Annotated[float, Field(gt=0, le=MAX_QUANTITY)] = 1.0


class LogNormalPart(Record):
    """A part of a mixture: its share, its median, and `sigma`, the deviation of its natural logarithm."""

    share: Annotated[float, Field(gt=0, le=1)]
    median: Annotated[float, Field(gt=0, le=MAX_QUANTITY)]
    sigma: Annotated[float, Field(ge=0, le=MAX_SIGMA)]


class LogNormal(Record):
    """Log-normal with this median and `sigma`, the deviation of its natural logarithm; or a mixture of such `parts`."""

    name: Literal["lognormal"] = "lognormal"
    median: Annotated[float, Field(gt=0, le=MAX_QUANTITY)] | None = None
    sigma: Annotated[float, Field(ge=0, le=MAX_SIGMA)] | None = None
    parts: Annotated[tuple[LogNormalPart, ...], Field(max_length=MOST_PARTS)] = ()

    @model_validator(mode="after")
    def _one_or_a_mixture(self) -> LogNormal:
        if self.parts and (self.median is not None or self.sigma is not None):
            raise ValueError("either `median` and `sigma`, or `parts`")
        if not self.parts and (self.median is None or self.sigma is None):
            raise ValueError("`median` and `sigma` are required, or `parts`")
        total = sum(part.share for part in self.parts)
        if self.parts and abs(total - 1) > 1e-9:
            raise ValueError(f"the shares of `parts` add up to {total:g}, not to 1")
        return self

    @property
    def mixture(self) -> tuple[LogNormalPart, ...]:
        """The parts; a single distribution has the share 1."""
        if self.median is None or self.sigma is None:
            return self.parts
        return (LogNormalPart(share=1.0, median=self.median, sigma=self.sigma),)


def _kind(raw: Any) -> str:
    return str(raw.get("name") if isinstance(raw, Mapping) else getattr(raw, "name", "number"))


def _kind_or_table(raw: Any) -> str:
    return "array" if isinstance(raw, list | tuple) else _kind(raw)


def _known(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        check_known("distribution", raw.get("name"), ("uniform", "normal", "lognormal", "pareto", "zipf"))
    return raw


Table = Annotated[tuple[Annotated[tuple[Finite, ...], Field(max_length=1000)], ...], Field(max_length=100_000)]
_Kinds = (
    Annotated[Finite, Tag("number")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[Normal, Tag("normal")]
    | Annotated[LogNormal, Tag("lognormal")]
    | Annotated[Pareto, Tag("pareto")]
    | Annotated[Zipf, Tag("zipf")]
)
Quantity = Annotated[_Kinds, Discriminator(_kind), BeforeValidator(_known)]
"""A number of at least 0, or a distribution of such numbers."""
QuantityOrTable = Annotated[
    _Kinds | Annotated[Table, Tag("array")], Discriminator(_kind_or_table), BeforeValidator(_known)
]
"""A quantity, or a table with a number for each row and column."""


def _positive(quantity: Any) -> Any:
    low = quantity.low if isinstance(quantity, Uniform) else quantity
    if isinstance(low, int | float) and low < MIN_QUANTITY:
        raise ValueError(f"must be at least {MIN_QUANTITY:g}")
    return quantity


Positive = Annotated[Quantity, AfterValidator(_positive)]
"""A quantity of at least `MIN_QUANTITY`, whether given or drawn."""


def _part_kind(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        check_known("distribution", raw.get("name"), ("uniform",))
    return raw


def _within_one(quantity: Uniform) -> Uniform:
    if quantity.high > 1:
        raise ValueError(f"high {quantity.high:g} is above 1")
    return quantity


Part = Annotated[float, Field(gt=0, lt=1)]
Parts = Annotated[
    Annotated[Part, Tag("number")]
    | Annotated[Uniform, AfterValidator(_within_one), Tag("uniform")]
    | Annotated[tuple[Part, ...], Field(min_length=1, max_length=100_000), Tag("array")],
    Discriminator(_kind_or_table),
    BeforeValidator(_part_kind),
]
"""A share for each of several clients: one number, a distribution, or a list that clients take in turn."""


def part_of(parts: Parts, number: int, seeds: Seeds, purpose: str) -> float:
    """Return the share of the client with this number, drawn from its own stream if `parts` is a distribution."""
    if isinstance(parts, tuple):
        return parts[number % len(parts)]
    return drawn(parts, seeds, purpose)


def uniform01(seed: int) -> float:
    """Map a 63-bit seed to a number strictly between 0 and 1."""
    return ((seed >> 11) + 0.5) / 2**52


def drawn(quantity: Quantity, seeds: Seeds, purpose: str) -> float:
    """Return the quantity, drawn from the stream of this purpose if it is a distribution."""
    return quantity if isinstance(quantity, int | float) else quantile(quantity, uniform01(seeds(purpose)))


def scaled(quantity: Quantity, factor: float) -> Quantity:
    """Return a quantity whose draws are multiplied by a factor of at least 1; it ends at `MAX_QUANTITY`."""
    if isinstance(quantity, int | float):
        return _times(quantity, factor)
    if isinstance(quantity, LogNormal):
        parts = tuple(part.replace(median=_times(part.median, factor)) for part in quantity.mixture)
        return LogNormal(parts=parts)
    sizes = {"low", "high", "mean", "sd", "scale"} & vars(quantity).keys()
    return quantity.replace(**{name: _times(getattr(quantity, name), factor) for name in sorted(sizes)})


def _times(value: float, factor: float) -> float:
    return min(value * factor, MAX_QUANTITY)


def quantile(quantity: Quantity, u: float) -> float:
    """Return the `u`-quantile of a distribution, 0 < u < 1; of a number, the number itself."""
    if isinstance(quantity, Uniform):
        return quantity.low + (quantity.high - quantity.low) * u
    if isinstance(quantity, Normal):
        return _normal(quantity, u)
    if isinstance(quantity, LogNormal):
        return _lognormal(quantity, u)
    if isinstance(quantity, Pareto):
        return min(quantity.scale * math.pow(1 - u, -1 / quantity.shape), MAX_QUANTITY)
    if isinstance(quantity, Zipf):
        return min(quantity.scale * _rank(quantity.exponent, quantity.n, u), MAX_QUANTITY)
    return quantity


def _normal(quantity: Normal, u: float) -> float:
    """x = mean + sd * Phi^-1(u'), with u' restricted to x > 0."""
    if not quantity.sd:
        return quantity.mean
    below = _UNIT.cdf(-quantity.mean / quantity.sd)
    x = quantity.mean + quantity.sd * _UNIT.inv_cdf(min(below + (1 - below) * u, 1 - 2**-53))
    return min(max(x, math.ulp(quantity.mean)), MAX_QUANTITY)


def _lognormal(quantity: LogNormal, u: float) -> float:
    """The x with sum of share * Phi(ln(x / median) / sigma) = u, by bisection between the quantiles of the parts."""
    z = _UNIT.inv_cdf(u)
    ends = [math.log(part.median) + part.sigma * z for part in quantity.mixture]
    low, high = min(ends), max(ends)
    while low < (middle := (low + high) / 2) < high:
        if log_normal_cdf(quantity, middle) < u:
            low = middle
        else:
            high = middle
    return max(math.exp(min(high, math.log(MAX_QUANTITY))), math.ulp(0.0))


def log_normal_cdf(quantity: LogNormal, log_x: float) -> float:
    """Return P(ln X <= log_x)."""
    return math.fsum(part.share * _below(log_x - math.log(part.median), part.sigma) for part in quantity.mixture)


def _below(distance: float, sigma: float) -> float:
    return _UNIT.cdf(distance / sigma) if sigma else float(distance >= 0)


def _rank(exponent: float, n: int, u: float) -> int:
    sums = _cumulated(exponent, n)
    return min(bisect_right(sums, u * sums[-1]) + 1, n)


@lru_cache(maxsize=64)
def _cumulated(exponent: float, n: int) -> tuple[float, ...]:
    return tuple(accumulate(k**-exponent for k in range(1, n + 1)))
