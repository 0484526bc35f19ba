"""The area under the ROC curve, from histograms of the log-odds of each class.

AUC is the probability that a random sample of a class gets a higher score than a random sample of the others, where
ties count half. It depends on the order of scores alone, so that log-odds serve as well as probabilities, and are not
crowded near 0 and 1. The state counts the samples of a class and the others by bins of their log-odds. Two samples in
different bins are ordered as without bins, two in the same bin count as a tie. So with p and q samples in a bin, of
P and Q in all, the value errs by at most sum(p q) / (2 P Q) (`largest_error`): by nothing if log-odds within the same
bin are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from shared.core.records import Record
from shared.core.scores import State
from shared.training.metrics.classification import CLASSES, one_each
from shared.training.metrics.metric import Metric

RANGE = 16.0
"""Log-odds beyond -16 and 16 (probabilities below 1.1e-7, above its complement) fall into the outermost bins."""


class Auc(Record):
    """Parameters of the AUC.

    Attributes:
        bins: number of bins, each 32 / `bins` wide in log-odds.
    """

    bins: Annotated[int, Field(ge=2, le=4096)] = 256


def n_rated(n_classes: int) -> int:
    """Number of classes that are set against all others: of two, the second alone, since the first mirrors it."""
    return 1 if n_classes == 2 else n_classes


def _histograms(params: Auc, logits: Tensor, labels: Tensor) -> Tensor:
    """By class, the counts by bin of the other samples, then those of its own."""
    n_classes, bins = logits.shape[1], params.bins
    first = n_classes - n_rated(n_classes)
    below = logits - torch.logsumexp(logits, 1, keepdim=True)  # log p
    odds = below - torch.log1p(-torch.exp(below))  # log p / (1 - p)
    places = ((odds + RANGE) * (bins / (2 * RANGE))).floor().clamp(0, bins - 1).to(torch.int64)[:, first:]
    classes = torch.arange(first, n_classes)
    own = (labels[:, None] == classes).to(torch.int64)
    keys = ((classes - first) * 2 + own) * bins + places
    return torch.bincount(keys.reshape(-1), minlength=len(classes) * 2 * bins)


def _pairs(params: Auc, state: State) -> Iterator[tuple[State, State]]:
    """By class, the histograms of the other samples and of its own."""
    bins = params.bins
    for begin in range(0, len(state), 2 * bins):
        yield state[begin : begin + bins], state[begin + bins : begin + 2 * bins]


def _area(others: State, own: State) -> float:
    """Returns the AUC of one class; whole numbers until the division."""
    below = twice = 0
    for other, mine in zip(others, own, strict=True):
        twice += mine * (2 * below + other)
        below += other
    return twice / (2 * below * sum(own))


def _auc(params: Auc, state: State) -> float | None:
    areas = [_area(others, own) for others, own in _pairs(params, state) if any(others) and any(own)]
    return math.fsum(areas) / len(areas) if areas else None


def largest_error(params: Auc, state: State) -> float:
    """Returns a bound on the difference between the value of a state and the AUC without bins."""
    bounds = [
        sum(other * mine for other, mine in zip(others, own, strict=True)) / (2 * sum(others) * sum(own))
        for others, own in _pairs(params, state)
        if any(others) and any(own)
    ]
    return math.fsum(bounds) / len(bounds) if bounds else 0.0


def _covers_all(params: Auc, state: State, n: int) -> bool:
    """Whether each class rates all predictions, and each of them belongs to one class."""
    pairs = [(sum(others), sum(own)) for others, own in _pairs(params, state)]
    n_own = sum(own for _, own in pairs)
    return all(others + own == n for others, own in pairs) and (n_own <= n if len(pairs) == 1 else n_own == n)


AUC = Metric(
    name="auc",
    description="area under the ROC curve of each class against all others, unweighted mean (of two: of the second)",
    kinds=CLASSES,
    state=_histograms,
    value=_auc,
    largest=lambda params, n_classes: one_each(2 * n_rated(n_classes) * params.bins),
    possible=_covers_all,
    unit="share",
    params=Auc,
)
