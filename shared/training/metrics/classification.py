"""Metrics of classes: accuracy, top-k accuracy, F1, perplexity. Outputs are logits, (n, classes)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shared.core.records import Record
from shared.core.scores import ClassCounts, State
from shared.training.metrics.metric import EXACT_SUM, Metric, exact_mean, exact_sum
from shared.training.specs import TargetKind

CLASSES: frozenset[TargetKind] = frozenset({"classes", "tokens"})


def share(params: Any, state: State) -> float | None:
    """Returns the share of hits of [predictions, hits], None without predictions."""
    n, hits = state
    return hits / n if n else None


def counts_all(params: Any, state: State, n: int) -> bool:
    """Whether the first number of a state counts all predictions."""
    return state[0] == n


def one_each(size: int) -> tuple[int, ...]:
    """The bounds of a state of counts."""
    return (1,) * size


# ---- accuracy


def _hits(params: Any, logits: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([torch.tensor(len(labels)), (logits.argmax(1) == labels).sum()])


ACCURACY = Metric(
    name="accuracy",
    description="share of predictions whose most likely class is the target",
    kinds=CLASSES,
    state=_hits,
    value=share,
    largest=lambda params, n_classes: one_each(2),
    possible=counts_all,
    unit="share",
)
"""Its state is [predictions, hits], which every score holds as `n` and `n_correct`: it is not sent twice."""


# ---- top-k


class TopK(Record):
    """Parameters of the top-k accuracy.

    Attributes:
        k: a target is hit if it is among the k most likely classes.
    """

    k: Annotated[int, Field(ge=1, le=10_000)] = 5


def _top_k_hits(params: TopK, logits: Tensor, labels: Tensor) -> Tensor:
    """Of classes with equal logits, the first is the more likely one, as for the accuracy."""
    own, places = logits.gather(1, labels[:, None]), torch.arange(logits.shape[1])
    ahead = (logits > own) | ((logits == own) & (places < labels[:, None]))
    return torch.stack([torch.tensor(len(labels)), (ahead.sum(1) < params.k).sum()])


TOP_K = Metric(
    name="top_k",
    description="share of predictions in which the target is among the k most likely classes",
    kinds=CLASSES,
    state=_top_k_hits,
    value=share,
    largest=lambda params, n_classes: one_each(2),
    possible=counts_all,
    unit="share",
    params=TopK,
)


# ---- F1


def class_counts(params: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """[hits, predictions, targets] of each class, one list after another."""
    n_classes, predicted = logits.shape[1], logits.argmax(1)
    counted = (labels[predicted == labels], predicted, labels)
    return torch.cat([torch.bincount(classes, minlength=n_classes) for classes in counted])


def thirds(state: State) -> Sequence[State]:
    """Returns hits, predictions and targets by class."""
    size = len(state) // 3
    return state[:size], state[size : 2 * size], state[2 * size :]


def _by_class(params: Any, state: State) -> ClassCounts:
    hits, predictions, targets = map(tuple, thirds(state))
    return ClassCounts(hits=hits, predictions=predictions, targets=targets)


class F1Params(Record):
    """Parameters of F1.

    Attributes:
        average: over classes or labels: `macro`, the mean of their F1 without weights; `micro`, the F1 of their summed
            counts.
    """

    average: Literal["macro", "micro"] = "macro"


def f1_of(params: F1Params, state: State) -> float | None:
    """F1 = 2 hits / (predictions + targets): the harmonic mean of precision and recall."""
    counts = list(zip(*thirds(state), strict=True))
    if params.average == "micro":
        counts = [tuple(map(sum, zip(*counts, strict=True)))]
    of_classes = [2 * hits / (got + due) for hits, got, due in counts if got + due]
    return math.fsum(of_classes) / len(of_classes) if of_classes else None


def _agree(params: Any, state: State, n: int) -> bool:
    hits, predicted, targets = thirds(state)
    fits = all(hit <= min(got, due) for hit, got, due in zip(hits, predicted, targets, strict=True))
    return fits and sum(predicted) == sum(targets) == n


F1 = Metric(
    name="f1",
    description="harmonic mean of precision and recall, mean over classes or labels without weights (macro F1)",
    kinds=CLASSES,
    state=class_counts,
    value=f1_of,
    largest=lambda params, n_classes: one_each(3 * n_classes),
    possible=_agree,
    counts=_by_class,
    unit="share",
    params=F1Params,
)


# ---- perplexity


def _surprise(params: Any, logits: Tensor, labels: Tensor) -> State:
    """[predictions, the sum of their cross-entropies]."""
    return len(labels), exact_sum(functional.cross_entropy(logits, labels, reduction="none"), "a cross-entropy")


def _perplexity(params: Any, state: State) -> float | None:
    n, total = state
    mean = exact_mean(total, n)
    return math.exp(mean) if mean is not None and mean < 700 else None  # beyond, it exceeds what a record may hold


PERPLEXITY = Metric(
    name="perplexity",
    description="exponential of the mean cross-entropy in nats",
    kinds=CLASSES,
    state=_surprise,
    value=_perplexity,
    largest=lambda params, n_classes: (1, EXACT_SUM),
    possible=counts_all,
    higher_is_better=False,
)
