"""Scores of evaluations, and the distribution of a metric over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from shared.core.bounds import Count, Label, Real
from shared.core.records import LEFT_OUT, Record
from shared.core.tallies import Tally

MAX_STATE = 2**16
"""Most numbers of a metric's state."""
MAX_STATE_NUMBER = 2**2160
"""Largest absolute number of a metric's state: a sum over `MAX_COUNT` doubles of any size, in steps of 2^-1074."""
MAX_METRICS = 16
"""Most metrics of a run, and of a score."""
State = Annotated[
    tuple[Annotated[int, Field(ge=-MAX_STATE_NUMBER, le=MAX_STATE_NUMBER)], ...], Field(max_length=MAX_STATE)
]
"""The state of a metric: whole numbers, so that the sum of states is exact and depends on no order."""
AnyState = State | Tally
"""A metric's state: numbers that are added place by place, or counts of numbers by their order."""


class ClassCounts(Record):
    """What an evaluation counts by class; the numbers of a class are at its place.

    Attributes:
        hits: its samples that are predicted as it.
        predictions: samples that are predicted as it.
        targets: its samples.
        confusion: by the class of the target, the predictions of each class; empty where only the sums were counted.
    """

    hits: tuple[int, ...]
    predictions: tuple[int, ...]
    targets: tuple[int, ...]
    confusion: Annotated[tuple[tuple[int, ...], ...], Field(exclude_if=lambda matrix: not matrix)] = ()

    def recall(self, label: int) -> float | None:
        """Share of the samples of a class that are predicted as it, None without samples."""
        return self.hits[label] / self.targets[label] if self.targets[label] else None

    def precision(self, label: int) -> float | None:
        """Share of the predictions of a class that are right, None without predictions."""
        return self.hits[label] / self.predictions[label] if self.predictions[label] else None

    def f1(self, label: int) -> float | None:
        """2 hits / (predictions + targets) of a class, None without either."""
        whole = self.predictions[label] + self.targets[label]
        return 2 * self.hits[label] / whole if whole else None

    def __add__(self, other: ClassCounts) -> ClassCounts:
        def sums(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(a + b for a, b in zip(one, two, strict=True))

        return ClassCounts(
            hits=sums(self.hits, other.hits),
            predictions=sums(self.predictions, other.predictions),
            targets=sums(self.targets, other.targets),
            confusion=tuple(map(sums, self.confusion, other.confusion)),
        )


class Score(Record):
    """The counts of one evaluation; scores can be added.

    A prediction belongs to each value of a target: one a sample where targets are classes or single numbers.

    Attributes:
        n: number of predictions: one for each sample, or for each token of a sequence that is not padding.
        n_correct: number of predictions whose most likely class is the label; 0 of numbers.
        loss_sum: sum of the predictions' losses: by default cross-entropies in nats, or squared errors.
        loss_weight: sum of the predictions' weights in the mean loss; None where each counts once.
        states: by label, the states of the run's further metrics; the state of the accuracy is `n` and `n_correct`.
    """

    n: Count
    n_correct: Count
    loss_sum: Real
    loss_weight: Annotated[Annotated[Real, Field(ge=0)] | None, LEFT_OUT] = None
    states: dict[Label, AnyState] = Field(
        default_factory=dict, max_length=MAX_METRICS, exclude_if=lambda states: not states
    )

    @classmethod
    def nothing(cls) -> Score:
        """The score of no samples, to which others are added."""
        return cls(n=0, n_correct=0, loss_sum=0.0)

    @property
    def accuracy(self) -> float | None:
        """Share of right predictions, None without any."""
        return self.n_correct / self.n if self.n else None

    @property
    def loss(self) -> float | None:
        """Mean loss of a prediction, None without any."""
        weight = self.n if self.loss_weight is None else self.loss_weight
        return self.loss_sum / weight if weight else None

    def __add__(self, other: Score) -> Score:
        return Score(
            n=self.n + other.n,
            n_correct=self.n_correct + other.n_correct,
            loss_sum=self.loss_sum + other.loss_sum,
            loss_weight=_added_weights(self, other),
            states=added(self.states, other.states),
        )


def _added_weights(one: Score, other: Score) -> float | None:
    if one.loss_weight is None and other.loss_weight is None:
        return None
    return sum(each.n if each.loss_weight is None else each.loss_weight for each in (one, other))


def added(one: Mapping[str, AnyState], other: Mapping[str, AnyState]) -> dict[str, AnyState]:
    """Returns the sums of states, exactly; a state that only one side has is that of no other samples.

    Raises:
        ValueError: two states of one label differ in kind or length.
    """
    return {**one, **{label: _sum(one[label], state) if label in one else state for label, state in other.items()}}


def _sum(one: AnyState, other: AnyState) -> AnyState:
    if isinstance(one, Tally):
        return one + other
    if isinstance(other, Tally):
        raise ValueError("a tally and numbers have no sum")
    return tuple(a + b for a, b in zip(one, other, strict=True))


class Spread(Record):
    """The distribution of a metric over clients, unweighted: the numbers of a box plot, and how even it is.

    Attributes:
        variance: mean squared deviation from the mean (divided by n); None in records of earlier versions.
        worst_decile: mean over the ceil(n / 10) clients with the worst values; None in such records.
    """

    n: int
    mean: float
    min: float
    q1: float
    median: float
    q3: float
    max: float
    variance: float | None = None
    worst_decile: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], *, higher_is_better: bool = True) -> Spread:
        """Returns the spread of at least one value; quartiles are interpolated linearly.

        Clients with equal values are interchangeable in the worst decile, so that ties need no rule. Variance and
        worst decile are sums without rounding until the end, which depend on no order.
        """
        low, q1, median, q3, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
        n, worst = len(values), sorted(values, reverse=not higher_is_better)[: -(-len(values) // 10)]
        centre = math.fsum(values) / n
        return cls(
            n=n,
            mean=sum(values) / n,
            min=low,
            q1=q1,
            median=median,
            q3=q3,
            max=high,
            variance=math.fsum((value - centre) ** 2 for value in values) / n,
            worst_decile=math.fsum(worst) / len(worst),
        )


Spreads = dict[str, Spread]
"""Spreads over clients by which of their models: those they `received`, their `own`, and `own_on_NAME` of `test_on`."""
FurtherSpreads = Annotated[dict[Label, Spreads], Field(max_length=MAX_METRICS, exclude_if=lambda found: not found)]
"""The same of metrics other than the headline, by label; left out of a record that has none."""
