"""A reference FedPer and DTPFL without tiers, with its own averages and clustering; it shares only `loop.py`.

A client is a device, or with `client: edge` a user: all seats of a home, whose models are averaged by share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.training import models
from shared.training.evaluation import evaluate
from tests.shared.algorithms import flat

LAYERS = {
    "mlp": (("features.1.weight", "features.1.bias"), ("head.weight", "head.bias")),
    "linear": (("head.weight", "head.bias"),),
}
"""Tensor names by layer, from input to output."""
Vectors = list[npt.NDArray[np.float64]]


@dataclass
class Plain:
    """The results of a run.

    Attributes:
        base: the global model; its personal layers are the initial ones.
        models: by client, the model that it holds: base and its own or its group's personal layers.
        groups: by client, None before the clustering.
        last: the last layers that were clustered, weight and bias in a row.
    """

    base: TensorMap
    models: dict[int, TensorMap] = field(default_factory=dict)
    groups: list[list[int]] | None = None
    last: Vectors = field(default_factory=list)


def clients_of(experiment: Experiment) -> dict[int, list[int]]:
    """Returns the seats that train for each client."""
    seats = [seat for seat in experiment.population.seats if len(seat.train)]
    if experiment.spec.client == "device":
        return {seat.number: [seat.number] for seat in seats}
    return {
        home.number: [seat.number for seat in seats if seat.home_edge == home.number]
        for home in experiment.population.edges
    }


def run(
    experiment: Experiment,
    *,
    personal_layers: int,
    num_rounds: int,
    pretrain_rounds: int | None = None,
    threshold: float = 0.0,
    start: TensorMap | None = None,
    first: int = 1,
) -> Plain:
    """Rounds `first` to `num_rounds` from a model; without `pretrain_rounds` there is no clustering: FedPer."""
    start = start or experiment.initial
    known = LAYERS[experiment.spec.model.name]
    mine = [name for layer in known[len(known) - personal_layers :] for name in layer]
    clients, total = clients_of(experiment), experiment.population.total_samples
    weights = {c: sum(len(experiment.population.seats[s].train) for s in seats) for c, seats in clients.items()}
    done = Plain(start, dict.fromkeys(clients, start))
    if pretrain_rounds == 0:
        done.groups = [sorted(clients)]
    for round_no in range(first, num_rounds + 1):
        after = {c: _trained(experiment, seats, round_no, done.models[c]) for c, seats in clients.items()}
        moved = {c: _minus(after[c], done.models[c]) for c in clients}
        mean = flat.exact_mean([_without(moved[c], mine) for c in clients], list(weights.values()), total)
        done.base = {name: tensor + mean[name] if name in mean else tensor for name, tensor in done.base.items()}
        personal = {c: {name: after[c][name] for name in mine} for c in clients}
        if done.groups is not None:
            for group in done.groups:
                deltas = [{name: moved[c][name] for name in mine} for c in group]
                step = flat.exact_mean(deltas, [weights[c] for c in group], total)
                personal |= {c: {n: done.models[c][n] + step[n] for n in mine} for c in group}
        elif round_no == pretrain_rounds:
            done.last = [vector(experiment, after[c]) for c in sorted(clients)]
            done.groups = agglomerate(distances(done.last), threshold)
            personal |= _means(done.groups, personal, weights)
        done.models = {c: {**done.base, **personal[c]} for c in clients}
    return done


def _trained(experiment: Experiment, seats: list[int], round_no: int, start: TensorMap) -> TensorMap:
    """Returns a client's model: its seat's, or the mean of its seats' by share."""
    after = [flat.local(experiment, seat, round_no, start) for seat in seats]
    if experiment.spec.client == "device":
        return after[0]
    sizes = [len(experiment.population.seats[seat].train) for seat in seats]
    return flat.averaged(start, after, sizes, experiment.population.total_samples)


def _means(groups: list[list[int]], personal: dict[int, TensorMap], weights: dict[int, int]) -> dict[int, TensorMap]:
    """Equation 9 on the personal layers as they were sent."""
    found: dict[int, TensorMap] = {}
    for group in groups:
        n = sum(weights[c] for c in group)
        mean: Any = {
            name: sum(weights[c] / n * personal[c][name].double() for c in group).float()  # type: ignore[union-attr]
            for name in personal[group[0]]
        }
        found |= dict.fromkeys(group, mean)
    return found


def _minus(a: TensorMap, b: TensorMap) -> TensorMap:
    return {name: a[name] - b[name] for name in a}


def _without(a: TensorMap, names: list[str]) -> TensorMap:
    return {name: tensor for name, tensor in a.items() if name not in names}


# ---- clustering


def vector(experiment: Experiment, model: TensorMap) -> npt.NDArray[np.float64]:
    """Returns the last layer's weight and bias as one vector."""
    return np.concatenate([model[name].double().numpy().ravel() for name in LAYERS[experiment.spec.model.name][-1]])


def distances(vectors: Vectors) -> npt.NDArray[np.float64]:
    """Returns 1 - cos for every pair, (n, n)."""
    n = len(vectors)
    found = np.zeros((n, n))
    for i, j in combinations(range(n), 2):
        a, b = vectors[i], vectors[j]
        found[i, j] = found[j, i] = 1 - (a @ b) / np.sqrt((a @ a) * (b @ b))
    return found


def agglomerate(apart: npt.NDArray[np.float64], threshold: float) -> list[list[int]]:
    """Merge the two nearest groups (mean of all pairs) while that is at most `threshold`; by lowest member."""
    groups = [[i] for i in range(len(apart))]
    while len(groups) > 1:
        near, i, j = min((apart[np.ix_(a, b)].mean(), i, j) for (i, a), (j, b) in combinations(enumerate(groups), 2))
        if near > threshold:
            break
        groups[i] = sorted(groups[i] + groups[j])
        del groups[j]
    return sorted(groups)


# ---- evaluation


def accuracy(experiment: Experiment, client: int, model: TensorMap) -> float:
    """Returns the accuracy of a model on a client's own test samples."""
    owner: Any = (
        experiment.population.seats[client]
        if experiment.spec.client == "device"
        else experiment.population.edges[client]
    )
    models.write_state(experiment.model, model)
    data = experiment.data
    x, y = (data.train_x, data.train_y) if owner.test.part == "train" else (data.test_x, data.test_y)
    score = evaluate(experiment.model, x, y, owner.test.indices)
    return score.n_correct / score.n
