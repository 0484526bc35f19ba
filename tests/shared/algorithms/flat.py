"""A reference FedAvg without tiers: it has its own seats, streams and integer averaging and shares only `loop.py`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.training import models
from shared.training.loop import Correct, batches, train

PARAMETER_BOUND_BITS = 7
Correction = Callable[[TensorMap], Correct]
Chosen = Callable[[int], Sequence[int]]


def stream(*key: object) -> int:
    """Returns the documented seed of a stream: 63 bits of sha256 over the key's parts."""
    text = "|".join(str(part) for part in key)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def local(
    experiment: Experiment,
    seat: int,
    round_no: int,
    start: TensorMap,
    edge_round: int = 0,
    correct: Correct | None = None,
) -> TensorMap:
    """Returns the result of one seat's local training from a model."""
    spec, data, model = experiment.spec, experiment.data, experiment.model
    models.write_state(model, start)
    generator = torch.Generator().manual_seed(stream(spec.seed, f"seat {seat}", round_no, edge_round, 0, "batches"))
    drawn = batches(
        data.train_x,
        data.train_y,
        experiment.population.seats[seat].train,
        batch_size=spec.batch_size,
        generator=generator,
        epochs=None if spec.local_steps else spec.local_epochs,
        steps=spec.local_steps,
    )
    train(model, drawn, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay, correct=correct)
    return models.read_state(model)


def exact_mean(deltas: list[TensorMap], weights: list[int], total_weight: int) -> TensorMap:
    """Returns the mean in documented fixed-point steps: n * round(delta * 2^g) in 64-bit integers, then one division.

    g = 53 - ceil(log2(total weight)) - 7, for elements up to 2^7.
    """
    g = 53 - math.ceil(math.log2(total_weight)) - PARAMETER_BOUND_BITS
    means = {}
    for name in deltas[0]:
        steps: npt.NDArray[np.int64] = np.zeros(tuple(deltas[0][name].shape), np.int64)
        for delta, weight in zip(deltas, weights, strict=True):
            steps += weight * np.rint(delta[name].double().numpy() * 2.0**g).astype(np.int64)
        means[name] = torch.from_numpy((steps.astype(np.float64) * 2.0**-g / sum(weights)).astype(np.float32))
    return means


def averaged(start: TensorMap, trained: Sequence[TensorMap], weights: list[int], total_weight: int) -> TensorMap:
    """Returns a model plus the exact mean of what those that were trained from it have changed."""
    mean = exact_mean([{name: after[name] - start[name] for name in start} for after in trained], weights, total_weight)
    return {name: tensor + mean[name] for name, tensor in start.items()}


def fedavg(
    experiment: Experiment,
    num_rounds: int,
    *,
    first: int = 1,
    chosen: Chosen | None = None,
    correction: Correction | None = None,
) -> TensorMap:
    """Returns the model after rounds `first` to `num_rounds` of FedAvg over all seats or those `chosen` names."""
    wanted, seed = experiment.spec.model, stream(experiment.spec.seed, "model")
    made = models.build(wanted.name, experiment.data.sample, experiment.data.target, seed, wanted.projection)
    model = models.read_state(made)
    sizes = [len(seat.train) for seat in experiment.population.seats]
    for round_no in range(first, num_rounds + 1):
        seats = (
            chosen(round_no)
            if chosen
            else [seat.number for seat in experiment.population.seats if seat.role == "train"]
        )
        correct = correction(model) if correction else None
        trained = [local(experiment, seat, round_no, model, correct=correct) for seat in seats]
        model = averaged(model, trained, [sizes[seat] for seat in seats], sum(sizes))
    return model


def same_bits(a: TensorMap, b: TensorMap) -> bool:
    """Whether two models have the same names and bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def distance(a: TensorMap, b: TensorMap) -> float:
    """Returns the largest difference of an element."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def softmax_gradient(
    weight: npt.NDArray[Any], bias: npt.NDArray[Any], x: npt.NDArray[Any], y: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns the gradient of the mean cross-entropy of softmax(x W^T + b) from its formula, in float64."""
    logits = x @ weight.T + bias
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    errors = odds / odds.sum(axis=1, keepdims=True)  # (n, classes)
    errors[np.arange(len(y)), y] -= 1
    return errors.T @ x / len(y), errors.mean(axis=0)


def mean_of_round(sent: Sequence[Any], key: str) -> torch.Tensor:
    """Returns the mean of contributions by samples; with masks, each position averages over those that have it."""
    total, weight = torch.zeros(()), torch.zeros(())
    for item in sent:
        mask = item.update.mask[key] if hasattr(item.update, "mask") else torch.ones(())
        total = total + item.n_samples * mask * item.update.delta[key].double()
        weight = weight + item.n_samples * mask
    return total / weight.clamp(min=1)
