"""Claims of a paper, and what our runs say of them by one rule.

The difference between two settings is taken seed by seed. With the paired 95 % t-interval of its mean, a claim is

    shown       if the interval excludes 0 in the claimed direction
    refuted     else, if it excludes half the claimed gain: all of it lies below
    undecided   otherwise, and always with fewer than two seeds
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t

from benchmarks.papers.measured import Measured

Verdict = Literal["shown", "refuted", "undecided", "not run"]
Value = Callable[[Measured], float | None]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean of n paired differences, with half the width of its 95 % t-interval (infinite with one)."""

    mean: float
    half_width: float
    n: int

    def text(self, unit: str, decimals: int) -> str:
        """Mean, half-width and number of seeds, for a table."""
        spread = f" ± {self.half_width:.{decimals}f}" if math.isfinite(self.half_width) else ""
        return f"{self.mean:+.{decimals}f}{spread} {unit}".strip() + f", {self.n} seed{'s' if self.n > 1 else ''}"


def interval(differences: Sequence[float]) -> Interval:
    """The interval of at least one difference."""
    n = len(differences)
    if n == 1:
        return Interval(differences[0], math.inf, 1)
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return Interval(statistics.fmean(differences), quantile * statistics.stdev(differences) / math.sqrt(n), n)


def verdict(found: Interval, gain: float) -> Verdict:
    """The verdict on a claimed gain; a negative gain means that the method has less, such as bytes or seconds."""
    mean = math.copysign(1, gain) * found.mean
    if mean - found.half_width > 0:
        return "shown"
    return "refuted" if mean + found.half_width < abs(gain) / 2 else "undecided"


@dataclass(frozen=True)
class Claim:
    """What a paper promises: one setting has more (or less) of something than another.

    Attributes:
        text: the claim.
        paper: the paper's figure, and where it stands.
        gain: the claimed difference in the unit of `value`; below 0 where less is better.
        ours, other: keys of the settings of the method and of what it is compared with.
        value: the figure of a run.
        of_other: that of a run of the other setting, if it is another figure.
        unit: of the figures.
        decimals: places of the difference in tables.
    """

    text: str
    paper: str
    gain: float
    ours: str
    other: str
    value: Value
    of_other: Value | None = None
    unit: str = "points"
    decimals: int = 2

    def cells(self, runs: Sequence[Measured]) -> tuple[str, str]:
        """The difference and the verdict, for a table; also whether a gain that is shown is less than half of it."""
        found, said = self.decide(runs)
        if found is None:
            return "", said
        small = math.copysign(1, self.gain) * found.mean + found.half_width < abs(self.gain) / 2
        less = ", but less than half of the gain" if said == "shown" and small else ""
        return found.text(self.unit, self.decimals), f"**{said}**{less}"

    def decide(self, runs: Sequence[Measured]) -> tuple[Interval | None, Verdict]:
        """The interval over the seeds that both settings have run with, and the verdict."""
        differences = []
        for ours in runs:
            for other in runs:
                if (ours.setting, other.setting, ours.seed) == (self.ours, self.other, other.seed):
                    pair = self.value(ours), (self.of_other or self.value)(other)
                    differences += [pair[0] - pair[1]] if pair[0] is not None and pair[1] is not None else []
        if not differences:
            return None, "not run"
        found = interval(differences)
        return found, verdict(found, self.gain)
