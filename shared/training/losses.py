"""Losses by name. Targets have a loss of their own, which training minimises where a spec names none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shared.core.records import Nothing, Record
from shared.training.description import Target
from shared.training.metrics.metric import Kind, rows_of


@dataclass(frozen=True)
class Loss:
    """A loss of a model's outputs.

    Attributes:
        name: its name in specs.
        description: what it is, in one sentence.
        kinds: of targets for which it is defined.
        each: from its parameters, outputs and targets, the loss of each prediction, (n,), differentiable. Outputs and
            targets have a row for each prediction, see `rows_of`.
        params: record type of its parameters.
    """

    name: str
    description: str
    kinds: frozenset[Kind]
    each: Callable[[Any, Tensor, Tensor], Tensor]
    params: type[Record] = Nothing


@dataclass(frozen=True)
class LossOfRun:
    """A loss with the parameters that a run's spec gives it.

    Attributes:
        loss: the loss.
        params: its parameters.
        target: of the run's data.
    """

    loss: Loss
    params: Record
    target: Target

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean over the predictions of a batch, which training minimises."""
        return self.loss.each(self.params, *rows_of(self.target, outputs, targets)).mean()

    def sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the sum over the predictions of a batch."""
        return self.loss.each(self.params, *rows_of(self.target, outputs, targets)).sum()


CLASSES: frozenset[Kind] = frozenset({"classes", "tokens"})
NUMBERS: frozenset[Kind] = frozenset({"numbers"})


class CrossEntropy(Record):
    """Parameters of the cross-entropy.

    Attributes:
        smoothing: share of a target's weight that is spread evenly over all classes; 0 for none.
    """

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0


def _cross_entropy(params: CrossEntropy, outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=params.smoothing)


class Focal(Record):
    """Parameters of the focal loss.

    Attributes:
        gamma: how much less a target counts the more likely it is; 0 gives the cross-entropy.
    """

    gamma: Annotated[float, Field(ge=0, le=100)] = 2.0


def _focal(params: Focal, outputs: Tensor, targets: Tensor) -> Tensor:
    log_p = functional.log_softmax(outputs, 1).gather(1, targets[:, None])[:, 0]
    return -((1 - log_p.exp()) ** params.gamma) * log_p  # Lin et al., ICCV 2017, (4)


class Huber(Record):
    """Parameters of the Huber loss.

    Attributes:
        delta: error from which on the loss grows linearly, in the unit of the target.
    """

    delta: Annotated[float, Field(gt=0, le=1e12)] = 1.0


def _huber(params: Huber, outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.huber_loss(outputs, targets, reduction="none", delta=params.delta).mean(1)


LOSSES: dict[str, Loss] = {
    each.name: each
    for each in (
        Loss("cross_entropy", "cross-entropy in nats", CLASSES, _cross_entropy, CrossEntropy),
        Loss("focal", "cross-entropy in which likely targets count less", CLASSES, _focal, Focal),
        Loss("mse", "squared error", NUMBERS, lambda _, outputs, targets: (outputs - targets).square().mean(1)),
        Loss("mae", "absolute error", NUMBERS, lambda _, outputs, targets: (outputs - targets).abs().mean(1)),
        Loss("huber", "squared error of small, absolute error of large differences", NUMBERS, _huber, Huber),
    )
}
DEFAULT_LOSS: dict[str, str] = {"classes": "cross_entropy", "tokens": "cross_entropy", "numbers": "mse"}
"""The loss of a run whose spec names none, by what its targets are: the targets' own."""
