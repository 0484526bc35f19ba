"""Softmax regression on whole data sets in numpy and float64, without shuffling, for reference implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from tests.shared.algorithms import flat

Array = npt.NDArray[np.float64]
Gradient = Callable[[Array], Array]

ONE_BATCH = 1000
"""A batch size above any client's samples, so that each epoch is one full-batch step."""


def rows_of(experiment: Experiment, seat: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Returns a seat's images as vectors from -1 to 1, and its labels."""
    chosen = experiment.population.seats[seat].train
    x = ((experiment.data.train_x[chosen] / 255 - 0.5) / 0.5).reshape(len(chosen), -1)
    return x, np.asarray(experiment.data.train_y)[chosen]


def gradient_of(experiment: Experiment, seat: int) -> Gradient:
    """Returns the gradient of a seat's mean loss, (classes, inputs + 1): weights with the bias in the last column."""
    x, y = rows_of(experiment, seat)

    def gradient(w: Array) -> Array:
        to_weight, to_bias = flat.softmax_gradient(w[:, :-1], w[:, -1], x, y)
        return np.column_stack([to_weight, to_bias])

    return gradient


def loss_of(experiment: Experiment, model: TensorMap) -> float:
    """Returns the mean loss of a model of `linear` over all clients' samples."""
    w, losses = joined(model), []
    for seat in experiment.population.seats:
        x, y = rows_of(experiment, seat.number)
        logits = x @ w[:, :-1].T + w[:, -1]
        losses.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y])
    return float(np.concatenate(losses).mean())


def joined(model: TensorMap) -> Array:
    """Returns a model of `linear` (or its controls) as one matrix."""
    weight, bias = (model[name].double().numpy() for name in ("head.weight", "head.bias"))
    return np.column_stack([weight, bias])


def parted(w: Any) -> TensorMap:
    """Returns the matrix as a model's tensors."""
    return {"head.weight": torch.from_numpy(w[:, :-1].copy()), "head.bias": torch.from_numpy(w[:, -1].copy())}
