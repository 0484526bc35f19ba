"""`Spread`: how figures of clients spread, in a few numbers however many clients there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shared.records import Record


class Spread(Record):
    """How accuracies spread over clients, each counted once: what a box plot shows."""

    n: int
    mean: float
    min: float
    q1: float
    median: float
    q3: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value; quartiles between two values are interpolated."""
        low, q1, median, q3, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()
        return cls(n=len(values), mean=sum(values) / len(values), min=low, q1=q1, median=median, q3=q3, max=high)
