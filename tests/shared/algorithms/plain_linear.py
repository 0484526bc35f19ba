"""Softmax regression on whole data sets in numpy and float64, without shuffling, for reference implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def in_one_batch(**more: Any) -> dict[str, Any]:
    """Returns fields of a spec in which a client takes three full-batch steps a round."""
    return {"model": "linear", "batch_size": ONE_BATCH, "local_epochs": 3, **more}


def timed(delay_s: float, latencies_s: Any, links_s: Sequence[float]) -> dict[str, Any]:
    """Returns fields of a spec of full-batch steps in which a task takes its device's latency twice and the delay.

    Transfers of bytes and the work itself take no time; a message from or to an edge takes its link's latency.
    """
    fast = {"up_bps": 1e15, "down_bps": 1e15}
    return {
        "data": {"name": "digits", "n_train": 240, "n_test": 60},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "model": "linear",
        "batch_size": ONE_BATCH,
        "lr": 0.5,
        "num_edges": len(links_s),
        "num_devices": len(latencies_s) if latencies_s else 6,
        "devices": {
            "profile": {**fast, "latency_s": 0, "delay_s": delay_s, "compute_sps": 1e15},
            "edge_latency_s": latencies_s,
        },
        "edge_link": {"name": "backhaul", "by_home": [{"latency_s": link_s, **fast} for link_s in links_s]},
    }


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


def trained(
    experiment: Experiment,
    seat: int,
    start: Array,
    n_steps: int | None = None,
    *,
    round_no: int = 1,
    shift: Any = 0.0,
    pull: float = 0.0,
    bound: float | None = None,
) -> Array:
    """Returns where steps of momentum SGD on F(w) + <shift, w> + pull / 2 |w - start|^2 lead, F a seat's mean loss.

    As many as the spec has epochs, with the rate of the round; a slope is scaled down to a norm of at most `bound`.
    """
    spec, gradient = experiment.spec, gradient_of(experiment, seat)
    w, velocity = start, np.zeros_like(start)
    for _ in range(spec.local_epochs if n_steps is None else n_steps):
        slope = gradient(w) + shift + pull * (w - start)
        velocity = spec.momentum * velocity + slope * (min(1.0, bound / np.linalg.norm(slope)) if bound else 1.0)
        w = w - spec.lr_at(round_no) * velocity
    return w


def reach(experiment: Experiment, n_steps: int | None = None) -> float:
    """Returns the sum of the weights of all gradients in what such steps change: their number, without momentum."""
    n = experiment.spec.local_epochs if n_steps is None else n_steps
    return sum(experiment.spec.momentum**i for j in range(n) for i in range(j + 1))


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
