"""FedAvg: McMahan et al., algorithm 1, and its hierarchical form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.training import models
from shared.training.loop import batches, train
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import four, ran, tried

Weights = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def spec_of(**more: Any) -> dict[str, Any]:
    return {**four(), "partition": {"name": "dirichlet", "alpha": 0.5}, "model": "linear", **more}


# ---- the reference in plain numpy


def sgd(experiment: Experiment, seat: int, round_no: int, start: Weights) -> Weights:
    """Runs E epochs of mini-batch SGD on one client's samples; it shares only the order of the samples."""
    spec, own = experiment.spec, experiment.population.seats[seat].train
    x = ((experiment.data.train_x[own] / 255 - 0.5) / 0.5).reshape(len(own), -1)
    y = np.asarray(experiment.data.train_y)[own]
    generator = torch.Generator().manual_seed(flat.stream(spec.seed, f"seat {seat}", round_no, 0, 0, "batches"))
    weight, bias = start
    for _ in range(spec.local_epochs):
        order = torch.randperm(len(own), generator=generator).numpy()
        for begin in range(0, len(own), spec.batch_size):
            chosen = order[begin : begin + spec.batch_size]
            to_weight, to_bias = flat.softmax_gradient(weight, bias, x[chosen], y[chosen])
            weight, bias = weight - spec.lr * to_weight, bias - spec.lr * to_bias
    return weight, bias


def averaged(experiment: Experiment) -> TensorMap:
    """Computes w <- sum_k n_k / n * w_k in every round, in float64."""
    weights: Weights = (
        experiment.initial["head.weight"].double().numpy(),
        experiment.initial["head.bias"].double().numpy(),
    )
    sizes = [len(seat.train) for seat in experiment.population.seats]
    for round_no in range(1, experiment.spec.num_rounds + 1):
        clients = [sgd(experiment, seat, round_no, weights) for seat in range(len(sizes))]
        weights = tuple(  # type: ignore[assignment]
            sum(size / sum(sizes) * client[part] for size, client in zip(sizes, clients, strict=True))
            for part in (0, 1)
        )
    return {"head.weight": torch.from_numpy(weights[0]), "head.bias": torch.from_numpy(weights[1])}


@pytest.mark.parametrize(("batch_size", "local_epochs"), [(1000, 1), (16, 2)])
def test_model_is_the_weighted_mean_of_local_sgd(batch_size: int, local_epochs: int) -> None:
    spec = spec_of(batch_size=batch_size, local_epochs=local_epochs)
    done = tried(**spec)
    sizes = [len(seat.train) for seat in done.experiment.population.seats]
    assert max(sizes) > 1.2 * min(sizes), "equal sizes would not show the weights"
    assert flat.distance(done.model, averaged(done.experiment)) < 2e-6
    assert flat.distance(done.model, done.experiment.initial) > 0.01


# ---- reductions


async def test_one_device_is_centralised_training() -> None:
    """The bits are equal; the reference also has the rounding of `start + (trained - start)`."""
    done = await ran(spec_of(num_devices=1, num_edges=1, model="mlp", num_rounds=3), n_edges=1, agent_devices=(1,))
    assert flat.same_bits(done.model, flat.fedavg(done.experiment, 3))
    model, spec, data = done.experiment.model, done.experiment.spec, done.experiment.data
    models.write_state(model, done.experiment.initial)
    for round_no in (1, 2, 3):
        generator = torch.Generator().manual_seed(flat.stream(spec.seed, "seat 0", round_no, 0, 0, "batches"))
        pool = done.experiment.population.seats[0].train
        drawn = batches(data.train_x, data.train_y, pool, batch_size=32, generator=generator, epochs=1)
        assert train(model, drawn, lr=spec.lr).n_samples == 240
    assert flat.distance(done.model, models.read_state(model)) < 1e-6


def hierarchical(experiment: Experiment, num_rounds: int, edge_rounds: tuple[int, int]) -> TensorMap:
    """Computes client-edge-cloud averaging: every edge averages its clients, the cloud the edges."""
    sizes = [len(seat.train) for seat in experiment.population.seats]
    homes = [[seat.number for seat in experiment.population.seats if seat.home_edge == home] for home in range(2)]
    model = experiment.initial
    for round_no in range(1, num_rounds + 1):
        edges = []
        for seats, n in zip(homes, edge_rounds, strict=True):
            edge = model
            for edge_round in range(n):
                trained = [flat.local(experiment, seat, round_no, edge, edge_round) for seat in seats]
                edge = flat.averaged(edge, trained, [sizes[seat] for seat in seats], sum(sizes))
            edges.append(edge)
        model = flat.averaged(model, edges, [sum(sizes[seat] for seat in seats) for seats in homes], sum(sizes))
    return model


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("edge_rounds", "agent_devices"), [(2, (4,)), ([1, 3], (1, 1, 1, 1)), (2, (1, 1, 1, 1)), ([1, 3], (4,))]
)
async def test_several_edge_rounds_are_hierarchical_fedavg(
    edge_rounds: int | list[int], agent_devices: tuple[int, ...]
) -> None:
    done = await ran(spec_of(edge_rounds=edge_rounds, model="mlp"), agent_devices=agent_devices)
    first, second = edge_rounds if isinstance(edge_rounds, list) else (edge_rounds, edge_rounds)
    assert flat.same_bits(done.model, hierarchical(done.experiment, 2, (first, second)))
    assert not flat.same_bits(done.model, flat.fedavg(done.experiment, 2))
    rows = sorted((row.seat, row.edge_round) for row in done.rounds[0].seats)
    assert rows == [(seat, edge_round) for seat in range(4) for edge_round in range((first, second)[seat % 2])]


async def test_edges_are_weighted_by_the_samples_of_participants_of_any_edge_round() -> None:
    """With one seat of two in each edge round, an edge stands for the union of their samples, each counted once."""
    spec = spec_of(edge_rounds=2, select="random", fraction_train=0.5, num_rounds=1, seed=3)
    done = await ran(spec, agent_devices=(4,))
    sizes = [len(seat.train) for seat in done.experiment.population.seats]
    edges, weights, chosen = [], [], []
    for home in (0, 1):
        edge, took_part = done.experiment.initial, []
        for edge_round in (0, 1):
            rows = [row for row in done.rounds[0].seats if (row.seat % 2, row.edge_round) == (home, edge_round)]
            assert [row.seat for row in rows] == selected(done.experiment, home, edge_round)
            took_part += [row.seat for row in rows]
            trained = flat.local(done.experiment, took_part[-1], 1, edge, edge_round)
            edge = flat.averaged(edge, [trained], [sizes[took_part[-1]]], sum(sizes))
        edges.append(edge)
        weights.append(sum(sizes[seat] for seat in set(took_part)))
        chosen.append(len(set(took_part)))
    assert sorted(chosen) == [1, 2], "one edge must have selected a seat twice, the other both seats"
    assert flat.same_bits(done.model, flat.averaged(done.experiment.initial, edges, weights, sum(sizes)))


def selected(experiment: Experiment, home: int, edge_round: int) -> list[int]:
    """Returns FedAvg's selection with C = 1/2 by the documented stream of the edge."""
    seats = [seat.number for seat in experiment.population.seats if seat.home_edge == home]
    rng = np.random.default_rng(flat.stream(experiment.spec.seed, f"edge {home}", 1, edge_round, 0, "select"))
    return sorted(seats[i] for i in rng.choice(len(seats), size=1, replace=False))


# ---- the claim


async def test_digits_are_learned_within_few_rounds() -> None:
    spec = {"num_devices": 6, "num_edges": 2, "num_rounds": 8, "lr": 0.2, "batch_size": 16, "local_epochs": 2}
    done = await ran(spec, agent_devices=(3, 3))
    assert done.info.accuracy is not None
    assert done.info.accuracy > 0.9
    assert done.info.accuracy_of == "global model"
