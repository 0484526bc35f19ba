"""Metrics by class: recall, precision, the confusion matrix. Outputs are logits, (n, classes)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import isqrt
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from shared.core.errors import BadInput
from shared.core.records import Record
from shared.core.scores import MAX_STATE, ClassCounts, State
from shared.training.data.reading import listed
from shared.training.metrics.classification import CLASSES, F1, class_counts, one_each, thirds
from shared.training.metrics.metric import Metric


class OfClass(Record):
    """Parameters of recall and precision.

    Attributes:
        label: the class that is measured, by its number, or by its name where the data have names; None means the
            unweighted mean over classes.
    """

    label: Annotated[int, Field(ge=0, lt=2**31)] | Annotated[str, Field(min_length=1, max_length=200)] | None = None


Whole = Literal["targets", "predictions"]
"""What the hits are a share of: recall is that of a class's targets, precision of its predictions."""


def _state_of(whole: Whole) -> Callable[[OfClass, Tensor, Tensor], Tensor]:
    """[targets or predictions, hits] of one class; of all classes the state of F1."""

    def state(params: OfClass, logits: Tensor, labels: Tensor) -> Tensor:
        if params.label is None:
            return class_counts(None, logits, labels)
        predicted = logits.argmax(1).eq(int(params.label))
        due = labels.eq(int(params.label))
        return torch.stack([(due if whole == "targets" else predicted).sum(), (predicted & due).sum()])

    return state


def _value_of(whole: Whole) -> Callable[[OfClass, State], float | None]:
    """The share; of all classes its mean over those for which it is defined."""

    def value(params: OfClass, state: State) -> float | None:
        if params.label is not None:
            return state[1] / state[0] if state[0] else None
        hits, predictions, targets = thirds(state)
        wholes = targets if whole == "targets" else predictions
        shares = [hit / of for hit, of in zip(hits, wholes, strict=True) if of]
        return math.fsum(shares) / len(shares) if shares else None

    return value


def _numbered(params: OfClass, classes: Sequence[str]) -> OfClass:
    """Returns the parameters with the number of a class in place of its name."""
    if not isinstance(params.label, str):
        return params
    if params.label not in classes:
        known = f"the data have {listed(classes)}" if classes else "the data have no names of classes: give its number"
        raise BadInput(f"there is no class {params.label!r}; {known}", field="params.label")
    return params.replace(label=list(classes).index(params.label))


def _largest(params: OfClass, n_classes: int) -> Sequence[int]:
    if isinstance(params.label, int) and params.label >= n_classes:
        raise BadInput(f"label {params.label}: the data have the classes 0 to {n_classes - 1}", field="params.label")
    return F1.largest(None, n_classes) if params.label is None else one_each(2)


def _possible(params: OfClass, state: State, n: int) -> bool:
    return F1.possible(None, state, n) if params.label is None else state[1] <= state[0] <= n


def _share_of(name: str, whole: Whole, description: str) -> Metric:
    return Metric(
        name=name,
        description=f"{description}: of the class `label`, or the unweighted mean over classes that have any",
        kinds=CLASSES,
        state=_state_of(whole),
        value=_value_of(whole),
        largest=_largest,
        possible=_possible,
        counts=lambda params, state: F1.counts(None, state) if params.label is None else None,
        unit="share",
        params=OfClass,
        numbered=_numbered,
    )


RECALL = _share_of("recall", "targets", "share of the samples of a class that are predicted as it")
PRECISION = _share_of("precision", "predictions", "share of the predictions of a class that are right")


# ---- the confusion matrix


def _pairs(params: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Counts by target and prediction, one row after another."""
    n_classes = logits.shape[1]
    return torch.bincount(labels * n_classes + logits.argmax(1), minlength=n_classes * n_classes)


def _matrix(params: Any, state: State) -> ClassCounts:
    n_classes = isqrt(len(state))
    rows = tuple(state[at : at + n_classes] for at in range(0, len(state), n_classes))
    return ClassCounts(
        hits=tuple(row[at] for at, row in enumerate(rows)),
        predictions=tuple(map(sum, zip(*rows, strict=True))),
        targets=tuple(map(sum, rows)),
        confusion=rows,
    )


def _largest_matrix(params: Any, n_classes: int) -> Sequence[int]:
    if n_classes * n_classes > MAX_STATE:
        many = f"a matrix of {n_classes} x {n_classes} classes; the most is {isqrt(MAX_STATE)}"
        raise BadInput(f"{many}: recall, precision and f1 count each class without it", field="")
    return one_each(n_classes * n_classes)


CONFUSION = Metric(
    name="confusion",
    description="confusion matrix: predictions by the class of the target; a table, no value",
    kinds=CLASSES,
    state=_pairs,
    value=lambda params, state: None,
    largest=_largest_matrix,
    possible=lambda params, state, n: sum(state) == n,
    counts=_matrix,
    has_value=False,
)
