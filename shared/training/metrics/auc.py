"""The area under the ROC curve, from tallies of the log-odds of each class.

AUC is the probability that a random sample of a class gets a higher score than a random sample of the others, where
ties count half. It depends on the order of scores alone, so that log-odds serve as well as probabilities, and are not
crowded near 0 and 1. The state tallies the log-odds of a class's samples and of the others. Up to `most_keys` different
log-odds of a class the value is exact, whatever their size. Beyond, neighbours share a key and count as ties: with p
and q samples at a key, of P and Q in all, the value errs by at most sum(p q) / (2 P Q) (`largest_error`).
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from shared.core.records import Record
from shared.core.tallies import MAX_KEYS, Row, Tally
from shared.training.metrics.classification import CLASSES
from shared.training.metrics.metric import Metric


class Auc(Record):
    """Parameters of the AUC.

    Attributes:
        bins: most different log-odds of a class that are told apart; None means 32,768 divided among the classes.
    """

    bins: Annotated[int, Field(ge=2, le=MAX_KEYS)] | None = None


def n_rated(n_classes: int) -> int:
    """Number of classes that are set against all others: of two, the second alone, since the first mirrors it."""
    return 1 if n_classes == 2 else n_classes


def empty(params: Auc, n_rows: int) -> Tally:
    """Returns the tally of no samples, with a row for each class that is rated."""
    return Tally.empty(params.bins or max(MAX_KEYS // n_rows, 2), n_rows)


def _empty(params: Auc, n_classes: int) -> Tally:
    return empty(params, n_rated(n_classes))


def _tally(params: Auc, logits: Tensor, labels: Tensor) -> Tally:
    n_classes = logits.shape[1]
    first = n_classes - n_rated(n_classes)
    odds, truth = _log_odds(logits).numpy(), labels.numpy()
    return _empty(params, n_classes).counting([(odds[:, at], truth == at) for at in range(first, n_classes)])


def _log_odds(logits: Tensor) -> Tensor:
    """Returns log p / (1 - p) of each class: its logit less the log of the sum of the exponentials of the others'.

    1 - p is not computed from p, where it would be lost in rounding once p is near 1.
    """
    if logits.shape[1] <= 2:
        return logits - logits.flip(1)
    order = logits.sort(1, descending=True)
    below = torch.logsumexp(logits, 1, keepdim=True)  # of all; right for the others of a class that is not the largest
    odds = logits - (below + torch.log1p(-torch.exp(logits - below)))
    best = order.values[:, :1] - torch.logsumexp(order.values[:, 1:], 1, keepdim=True)
    return odds.scatter(1, order.indices[:, :1], best)


def _area(row: Row) -> float:
    """Returns the AUC of one class; whole numbers until the division."""
    below = twice = 0
    for other, mine in zip(row.others, row.own, strict=True):
        twice += mine * (2 * below + other)
        below += other
    return twice / (2 * below * sum(row.own))


def _with_both(state: Tally) -> list[Row]:
    """The rows of classes that have samples, and others."""
    return [row for row in state.rows if any(row.others) and any(row.own)]


def area_over_classes(params: Auc, state: Tally) -> float | None:
    """Returns the mean over classes of their AUC, without weights."""
    areas = [_area(row) for row in _with_both(state)]
    return math.fsum(areas) / len(areas) if areas else None


def largest_error(params: Auc, state: Tally) -> float:
    """Returns a bound on the difference between the value of a state and the AUC of all its log-odds, exactly told."""
    bounds = [
        sum(other * mine for other, mine in zip(row.others, row.own, strict=True))
        / (2 * sum(row.others) * sum(row.own))
        for row in _with_both(state)
        if row.dropped
    ]
    return math.fsum(bounds) / len(_with_both(state)) if bounds else 0.0


def _covers_all(params: Auc, state: Tally, n: int) -> bool:
    """Whether each class rates all predictions, and each of them belongs to one class."""
    pairs = [(sum(row.others), sum(row.own)) for row in state.rows]
    n_own = sum(own for _, own in pairs)
    return all(others + own == n for others, own in pairs) and (n_own <= n if len(pairs) == 1 else n_own == n)


AUC = Metric(
    name="auc",
    description="area under the ROC curve of each class against all others, unweighted mean (of two: of the second)",
    kinds=CLASSES,
    state=_tally,
    value=area_over_classes,
    possible=_covers_all,
    unit="share",
    params=Auc,
    tally=_empty,
    error=largest_error,
)
