"""Metrics of numbers: MAE and RMSE. Outputs and targets are float64, (n, values).

Where a target has several values, the error of a prediction is the mean over them.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from shared.core.scores import State
from shared.training.metrics.classification import counts_all
from shared.training.metrics.metric import EXACT_SUM, Metric, exact_mean, exact_sum
from shared.training.specs import TargetKind

NUMBERS: frozenset[TargetKind] = frozenset({"numbers"})


def _absolute(params: Any, outputs: Tensor, targets: Tensor) -> State:
    """[predictions, the sum of their absolute errors]."""
    return len(targets), exact_sum((outputs - targets).abs().mean(1), "an absolute error")


def _mean(params: Any, state: State) -> float | None:
    n, total = state
    return exact_mean(total, n)


MAE = Metric(
    name="mae",
    description="mean absolute error, in the unit of the target",
    kinds=NUMBERS,
    state=_absolute,
    value=_mean,
    largest=lambda params, n_classes: (1, EXACT_SUM),
    possible=counts_all,
    higher_is_better=False,
)


def _squared(params: Any, outputs: Tensor, targets: Tensor) -> State:
    """[predictions, the sum of their squared errors]."""
    return len(targets), exact_sum((outputs - targets).square().mean(1), "a squared error")


def _root_of_mean(params: Any, state: State) -> float | None:
    mean = _mean(params, state)
    return None if mean is None else math.sqrt(mean)


RMSE = Metric(
    name="rmse",
    description="root of the mean squared error, in the unit of the target",
    kinds=NUMBERS,
    state=_squared,
    value=_root_of_mean,
    largest=lambda params, n_classes: (1, EXACT_SUM),
    possible=counts_all,
    higher_is_better=False,
)
