"""Losses by name. Targets have a loss of their own, which training minimises where a spec names none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field
from torch import Tensor
from torch.nn import functional

from shared.core.plugins import Kind, Value
from shared.core.records import Record
from shared.training.description import Target
from shared.training.metrics.metric import rows_of
from shared.training.specs import TargetKind


@dataclass(frozen=True, kw_only=True)
class Loss(Value):
    """A loss of a model's outputs; `each` gets None as parameters where it declares none.

    Attributes:
        kinds: of targets for which it is defined.
        each: from its parameters, outputs and targets, the loss of each prediction, (n,), differentiable. Outputs and
            targets have a row for each prediction, see `rows_of`.
    """

    kinds: frozenset[TargetKind]
    each: Callable[[Any, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LossOfRun:
    """A loss with the parameters that a run's spec gives it.

    Attributes:
        loss: the loss.
        params: its parameters.
        target: of the run's data.
    """

    loss: Loss
    params: BaseModel | None
    target: Target

    def mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean over the predictions of a batch, which training minimises."""
        return self.loss.each(self.params, *rows_of(self.target, outputs, targets)).mean()

    def sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the sum over the predictions of a batch."""
        return self.loss.each(self.params, *rows_of(self.target, outputs, targets)).sum()


CLASSES: frozenset[TargetKind] = frozenset({"classes", "tokens"})
NUMBERS: frozenset[TargetKind] = frozenset({"numbers"})


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


def _squared(params: None, outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(1)


def _absolute(params: None, outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean(1)


_BUILT_IN = (
    Loss(
        name="cross_entropy",
        description="cross-entropy in nats",
        kinds=CLASSES,
        each=_cross_entropy,
        params=CrossEntropy,
    ),
    Loss(
        name="focal",
        description="cross-entropy in which likely targets count less",
        kinds=CLASSES,
        each=_focal,
        params=Focal,
    ),
    Loss(name="mse", description="squared error", kinds=NUMBERS, each=_squared),
    Loss(name="mae", description="absolute error", kinds=NUMBERS, each=_absolute),
    Loss(
        name="huber",
        description="squared error of small differences, absolute error of large ones",
        kinds=NUMBERS,
        each=_huber,
        params=Huber,
    ),
)
LOSSES: dict[str, Loss] = {each.name: each for each in _BUILT_IN}
LOSS_VALUES: Kind[Loss] = Kind(Loss, "loss", "loss", lambda: LOSSES, lambda name: LOSSES[name])
"""These losses and those of plug-ins."""
DEFAULT_LOSS: dict[str, str] = {"classes": "cross_entropy", "tokens": "cross_entropy", "numbers": "mse"}
"""The loss of a run whose spec names none, by what its targets are: the targets' own."""
