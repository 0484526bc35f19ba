"""Losses by name. Targets have a loss of their own, which training minimises where a spec names none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor
from torch.nn import functional

from shared.core.errors import BadInput
from shared.core.plugins import Kind, Value
from shared.core.records import LEFT_OUT, Record
from shared.core.user_code import user_code
from shared.training.description import Target
from shared.training.metrics.metric import check_kind, rows_of, targets_of
from shared.training.specs import TargetKind


def goes_with_all(params: Any, target: Target) -> str | None:
    """The default of `Loss.misfit`."""
    return None


@dataclass(frozen=True, kw_only=True)
class Loss(Value):
    """A loss of a model's outputs; its functions get None as parameters where it declares none.

    Attributes:
        kinds: of targets for which it is defined.
        each: from its parameters, outputs and targets, the loss of each prediction, (n,), differentiable. Outputs and
            targets have a row for each prediction, see `rows_of`.
        weights: from its parameters and targets, the weight of each prediction, (n,), by which `each` has multiplied
            its loss: means divide by their sum. None, the function or what it returns, means that each counts once.
        misfit: from its parameters and the run's target, why they do not go together; None if they do.
    """

    kinds: frozenset[TargetKind]
    each: Callable[[Any, Tensor, Tensor], Tensor]
    weights: Callable[[Any, Tensor], Tensor | None] | None = None
    misfit: Callable[[Any, Target], str | None] = goes_with_all


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
        """Returns the mean over the predictions of a batch by their weights, which training minimises."""
        each, weights = self.each(outputs, targets), self._weights(targets_of(self.target, targets))
        return each.mean() if weights is None else each.sum() / weights.sum()

    def sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the sum over the predictions of a batch."""
        return self.each(outputs, targets).sum()

    @cached_property
    def weighted(self) -> bool:
        """Whether predictions have weights; otherwise each counts once."""
        return self._weights(targets_of(self.target, self.target.example(1))) is not None

    def weight(self, targets: Tensor) -> float:
        """Returns the sum of the weights of a batch's predictions."""
        y = targets_of(self.target, targets)
        weights = self._weights(y)
        return float(len(y) if weights is None else weights.to(torch.float64).sum())

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of each prediction, (n,), times its weight.

        Raises:
            BadInput: the loss's own function returned another type or shape.
        """
        rows, y = rows_of(self.target, outputs, targets)
        with user_code(f"the loss {self.loss.name}", "loss", outputs=rows, targets=y):
            each = self.loss.each(self.params, rows, y)
        return self._checked(each, len(y), "one loss for each")

    def _weights(self, y: Tensor) -> Tensor | None:
        if self.loss.weights is None:
            return None
        with user_code(f"the weights of the loss {self.loss.name}", "loss", targets=y):
            found = self.loss.weights(self.params, y)
        return None if found is None else self._checked(found, len(y), "one weight for each")

    def _checked(self, found: Any, n: int, wanted: str) -> Tensor:
        """Refuses what is not a float tensor (n,), such as a mean: sums and means of it would be wrong in silence."""
        if isinstance(found, Tensor) and found.shape == (n,) and found.is_floating_point():
            return found
        what = f"a {type(found).__name__}"
        if isinstance(found, Tensor):
            what = f"{found.dtype} of shape {tuple(found.shape)}"
        why = f"{self.loss.name} returns {what} for {n} predictions, not {wanted}, floats of shape ({n},)"
        raise BadInput(f"loss: {why}; compute it with reduction='none'", field="loss")


def loss_of_run(loss: Loss, raw: Mapping[str, Any], target: Target) -> LossOfRun:
    """Returns a loss with the parameters of a spec.

    Raises:
        BadInput: a parameter is wrong, or does not go with such targets, or the loss is not defined for them.
    """
    made = LossOfRun(loss, loss.parse(raw, "loss.params"), target)
    check_kind("loss", loss.name, loss.kinds, target)
    misfit = loss.misfit(made.params, target)
    if misfit is not None:
        raise BadInput(f"loss.params: {misfit}", field="loss.params")
    return made


CLASSES: frozenset[TargetKind] = frozenset({"classes", "tokens"})
LABELS: frozenset[TargetKind] = frozenset({"labels"})
NUMBERS: frozenset[TargetKind] = frozenset({"numbers"})


Weight = Annotated[float, Field(gt=0, le=1e6)]


class CrossEntropy(Record):
    """Parameters of the cross-entropy.

    Attributes:
        smoothing: share of a target's weight that is spread evenly over all classes; 0 for none.
        weight: of each class, by its number; a mean divides by the sum of its targets' weights, as torch's does. None
            means 1 each.
    """

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight: Annotated[tuple[Weight, ...] | None, Field(max_length=100_000), LEFT_OUT] = None


def _cross_entropy(params: CrossEntropy, outputs: Tensor, targets: Tensor) -> Tensor:
    weight = None if params.weight is None else outputs.new_tensor(params.weight)
    return functional.cross_entropy(outputs, targets, weight, reduction="none", label_smoothing=params.smoothing)


def _class_weights(params: CrossEntropy, targets: Tensor) -> Tensor | None:
    return None if params.weight is None else torch.tensor(params.weight, device=targets.device)[targets]


def _one_for_each_class(params: CrossEntropy, target: Target) -> str | None:
    if params.weight is None or len(params.weight) == target.n_outputs:
        return None
    return f"weight has {len(params.weight)} numbers, the data have {target.n_outputs} classes"


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
        delta: error from which on the loss grows linearly, in the unit of the target as it is trained.
    """

    delta: Annotated[float, Field(gt=0, le=1e12)] = 1.0


def _huber(params: Huber, outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.huber_loss(outputs, targets, reduction="none", delta=params.delta).mean(1)


def _squared(params: None, outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean(1)


def _absolute(params: None, outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean(1)


class BinaryCrossEntropy(Record):
    """Parameters of the binary cross-entropy.

    Attributes:
        pos_weight: by which the loss of a label that a sample has is multiplied, one number or one for each label; None
            means 1.
    """

    pos_weight: Annotated[Weight | tuple[Weight, ...] | None, LEFT_OUT] = None


def _binary_cross_entropy(params: BinaryCrossEntropy, outputs: Tensor, targets: Tensor) -> Tensor:
    weight = None if params.pos_weight is None else outputs.new_tensor(params.pos_weight)
    each = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none", pos_weight=weight)
    return each.mean(1)


def _one_for_each_label(params: BinaryCrossEntropy, target: Target) -> str | None:
    if not isinstance(params.pos_weight, tuple) or len(params.pos_weight) == target.n_outputs:
        return None
    return f"pos_weight has {len(params.pos_weight)} numbers, the data have {target.n_outputs} labels"


_BUILT_IN = (
    Loss(
        name="cross_entropy",
        description="cross-entropy in nats",
        kinds=CLASSES,
        each=_cross_entropy,
        weights=_class_weights,
        misfit=_one_for_each_class,
        params=CrossEntropy,
    ),
    Loss(
        name="focal",
        description="cross-entropy in which likely targets count less",
        kinds=CLASSES,
        each=_focal,
        params=Focal,
    ),
    Loss(
        name="bce",
        description="binary cross-entropy in nats, the mean over labels",
        kinds=LABELS,
        each=_binary_cross_entropy,
        misfit=_one_for_each_label,
        params=BinaryCrossEntropy,
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
DEFAULT_LOSS: dict[str, str] = {
    "classes": "cross_entropy",
    "tokens": "cross_entropy",
    "labels": "bce",
    "numbers": "mse",
}
"""The loss of a run whose spec names none, by what its targets are: the targets' own."""
