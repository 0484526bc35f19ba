"""Scores of evaluations, and the distribution of accuracies over clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shared.core.bounds import Count, Real
from shared.core.records import Record


class Score(Record):
    """The counts of one evaluation; scores can be added.

    Attributes:
        n: number of predictions: one for each sample, or for each token of a sequence that is not padding.
        n_correct: number of predictions whose most likely class is the label; 0 of numbers.
        loss_sum: sum of the predictions' losses: cross-entropies in nats, or squared errors.
    """

    n: Count
    n_correct: Count
    loss_sum: Real

    @property
    def accuracy(self) -> float | None:
        """Share of right predictions, None without any."""
        return self.n_correct / self.n if self.n else None

    @property
    def loss(self) -> float | None:
        """Mean loss of a prediction, None without any."""
        return self.loss_sum / self.n if self.n else None

    def __add__(self, other: Score) -> Score:
        return Score(
            n=self.n + other.n,
            n_correct=self.n_correct + other.n_correct,
            loss_sum=self.loss_sum + other.loss_sum,
        )


class Spread(Record):
    """The distribution of accuracies over clients, unweighted: the numbers of a box plot."""

    n: int
    mean: float
    min: float
    q1: float
    median: float
    q3: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of at least one value; quartiles are interpolated linearly."""
        low, q1, median, q3, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
        return cls(n=len(values), mean=sum(values) / len(values), min=low, q1=q1, median=median, q3=q3, max=high)
