"""Trials of the loss and the metrics of plug-ins before a run: on drawn outputs and the data's first targets."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from shared.core.errors import BadInput, NotFinite, OutOfBound
from shared.federation.scoring import Scoring
from shared.training.data.dataset import as_targets
from shared.training.description import Target, Tokens
from shared.training.losses import LOSSES, LossOfRun
from shared.training.metrics.catalogue import METRICS
from shared.training.metrics.metric import MetricOfRun

N = 8
"""Samples on which they are tried."""


def drawn_outputs(target: Target, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Returns the outputs that a model might give for n samples, drawn by a normal distribution."""
    places = (target.length,) if isinstance(target, Tokens) else ()
    return torch.randn(n, *places, target.n_outputs, generator=generator or torch.Generator().manual_seed(0))


def try_scoring(scoring: Scoring, y: npt.NDArray[Any]) -> None:
    """Tries the loss and the metrics that plug-ins bring, each on a few samples; built-in ones are known to work.

    Outputs are between 0 and 1, so that a loss of probabilities accepts them too.

    Args:
        scoring: of a run.
        y: targets of its data.

    Raises:
        BadInput: one returns something of another type or shape, or a loss cannot be differentiated.
    """
    targets, outputs = as_targets(y[:N]), drawn_outputs(scoring.target, min(N, len(y))).sigmoid()
    if scoring.loss is not None and scoring.loss.loss is not LOSSES.get(scoring.loss.loss.name):
        _try_loss(scoring.loss, outputs, targets)
    for at, one in enumerate(scoring.metrics):
        if one.metric.name not in METRICS:
            _try_metric(one, f"metrics.{at}", scoring, outputs, targets)


def _try_loss(loss: LossOfRun, outputs: Tensor, targets: Tensor) -> None:
    if not loss.mean(outputs.requires_grad_(), targets).requires_grad:
        raise BadInput(f"loss: {loss.loss.name} has no gradient by the outputs of the model", field="loss")


def _try_metric(one: MetricOfRun, field: str, scoring: Scoring, outputs: Tensor, targets: Tensor) -> None:
    try:
        state = scoring.states(outputs, targets)[one.label]
        fault = one.fault(state, scoring.target.n_predictions(targets))
        one.value(state)
    except (NotFinite, OutOfBound):  # of drawn outputs, which may be beyond what a model gives
        return
    if fault is not None:
        raise BadInput(f"{field}: {one.metric.name} has {fault}; see its `largest` and `possible`", field=field)
