"""The evaluation loop: what a model's outputs on some samples come to, as sums that can be added."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from shared.core.errors import Cancelled, NotFinite
from shared.core.scores import AnyState, added
from shared.training.data.dataset import as_batch, as_targets
from shared.training.description import Target
from shared.training.loop import CLASSES, Encode, LossFunction, Stopped, Transform, WeightOf, channels_last
from shared.training.models.parts import parts_of

StatesFunction = Callable[[Tensor, Tensor], Mapping[str, AnyState]]
"""(outputs, targets) -> by label, the state of each metric on this batch."""


@dataclass(frozen=True)
class Evaluated:
    """Result of an evaluation as sums over predictions, which can be added.

    Attributes:
        n, n_correct: number of predictions, and of the right ones.
        loss_sum: sum of their losses.
        states: those of metrics by label.
        loss_weight: sum of their weights in the mean loss; None where each counts once.
    """

    n: int
    n_correct: int
    loss_sum: float
    states: Mapping[str, AnyState] = field(default_factory=dict)
    loss_weight: float | None = None


def evaluate(
    model: nn.Module,
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    indices: npt.NDArray[np.int64] | Sequence[int],
    *,
    batch_size: int = 512,
    transform: Transform | None = None,
    stopped: Stopped | None = None,
    target: Target = CLASSES,
    encode: Encode = as_batch,
    loss_sum_of: LossFunction | None = None,
    states_of: StatesFunction | None = None,
    weight_of: WeightOf | None = None,
) -> Evaluated:
    """Evaluates a model in evaluation mode: counts predictions and the right ones, sums losses and states of metrics.

    Args:
        model: not changed, its mode is restored; samples and targets are copied to its device.
        x: samples, (n, ...).
        y: targets, (n, ...).
        indices: the samples, evaluated in this order.
        batch_size: number of samples of a batch; `loss_sum` depends on it in its last bits.
        transform: applied to each batch's samples.
        stopped: called before each batch; the evaluation ends if it returns True.
        target: what the model is to say of a sample.
        encode: that of the data set.
        loss_sum_of: returns the sum of a batch's losses; None means the target's.
        states_of: returns the states of the metrics to measure.
        weight_of: of the loss; None means that each prediction counts once in its mean.

    Raises:
        Cancelled: `stopped` returned True.
        NotFinite: the loss is NaN or infinite.
    """
    chosen = np.asarray(indices, dtype=np.int64)
    with_layout, was_training, parts = channels_last(model), model.training, parts_of(model)
    device = parts.parameters[0].device
    n, n_correct, loss_sum, states, weight = 0, 0, 0.0, dict[str, AnyState](), 0.0
    parts.set_training(False)
    try:
        with torch.no_grad():
            for start in range(0, len(chosen), batch_size):
                if stopped is not None and stopped():
                    raise Cancelled(f"stopped after {start} of {len(chosen)} samples")
                part = chosen[start : start + batch_size]
                samples, targets = encode(x[part]).to(device), as_targets(y[part]).to(device)
                outputs = model(with_layout(samples if transform is None else transform(samples)))
                loss_sum += _sum_of(loss_sum_of or target.loss_sum, outputs, targets)
                if not math.isfinite(loss_sum):
                    raise NotFinite(f"the loss is {loss_sum} in an evaluation on {len(chosen)} samples")
                n_correct += int(target.hits(outputs, targets).sum())
                n += target.n_predictions(targets)
                weight += 0.0 if weight_of is None else weight_of(targets)
                states = states if states_of is None else added(states, states_of(outputs, targets))
    finally:
        parts.set_training(was_training)
    return Evaluated(n, n_correct, loss_sum, states, None if weight_of is None else weight)


def _sum_of(loss_sum_of: LossFunction, outputs: Tensor, targets: Tensor) -> float:
    """The sum of a batch's losses, in float64 where finite outputs have one that float32 does not hold."""
    found = loss_sum_of(outputs, targets).item()
    if math.isfinite(found) or not bool(outputs.isfinite().all()):
        return found
    wide = targets.to(torch.float64) if targets.is_floating_point() else targets
    return loss_sum_of(outputs.to(torch.float64), wide).item()
