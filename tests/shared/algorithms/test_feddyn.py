"""FedDyn: Acar et al., algorithm 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shared.federation.experiment import Experiment
from tests.shared.algorithms import flat, plain_linear
from tests.shared.algorithms.layouts import four, ran, tried
from tests.shared.algorithms.plain_linear import Array, in_one_batch

LOST = [{"round_no": 2, "seats": [1]}]


def spec_of(alpha: float, **more: Any) -> dict[str, Any]:
    """Returns a spec of four devices with 60 samples of two classes each."""
    return {
        **four(),
        "algorithm": {"name": "feddyn", "params": {"alpha": alpha}},
        "partition": {"name": "shards", "classes_per_device": 2},
        "num_rounds": 3,
        **more,
    }


def local(experiment: Experiment, seat: int, start: Array, grad: Array) -> Array:
    """Minimises L_k(theta) - <grad_k, theta> + alpha/2 |theta - start|^2 by the spec's steps."""
    p: Any = experiment.params
    return plain_linear.trained(experiment, seat, start, shift=-grad, pull=p.alpha)


def plain(experiment: Experiment, chosen: dict[int, list[int]]) -> tuple[Array, Array]:
    """Computes algorithm 1 in numpy as the paper writes it; returns theta and h after the spec's rounds."""
    alpha = experiment.params.alpha  # type: ignore[attr-defined]
    theta, m = plain_linear.joined(experiment.initial), len(experiment.population.seats)
    h, grads = np.zeros_like(theta), {seat: np.zeros_like(theta) for seat in range(m)}
    for round_no in range(1, experiment.spec.num_rounds + 1):
        seats = chosen.get(round_no, list(range(m)))
        found = {seat: local(experiment, seat, theta, grads[seat]) for seat in seats}
        for seat, own in found.items():
            grads[seat] = grads[seat] - alpha * (own - theta)
        h = h - alpha / m * sum(own - theta for own in found.values())
        theta = np.mean(list(found.values()), axis=0) - h / alpha
    return theta, h


@pytest.mark.matrix
@pytest.mark.parametrize(("alpha", "momentum"), [(0.1, 0.0), (0.5, 0.9)])
async def test_rounds_are_those_of_algorithm_1_also_with_a_client_missing(alpha: float, momentum: float) -> None:
    spec = spec_of(alpha, losses=LOST, **in_one_batch(momentum=momentum))
    done = await ran(spec, agent_devices=(3, 1))
    theta, h = plain(done.experiment, {2: [0, 2, 3]})
    rows = [row for detail in done.rounds for row in detail.seats if row.outcome == "used"]
    assert len(rows) == 11
    assert all(4 * 650 < row.up_bytes < 1.5 * 4 * 650 for row in rows)  # as FedAvg's
    assert flat.distance(done.model, plain_linear.parted(theta)) < 1e-5
    assert flat.distance(done.state.drift, plain_linear.parted(-h / alpha)) < 1e-5
    other, _ = plain(done.experiment, {})
    assert flat.distance(done.model, plain_linear.parted(other)) > 1e-3


def test_edge_rounds_move_the_models_and_the_cloud_adds_the_drift() -> None:
    """Two devices an edge, two edge rounds: H is the mean of all h_k, each of which changed twice."""
    alpha = 0.5
    done = tried(**spec_of(alpha, edge_rounds=2, num_rounds=2, **in_one_batch()))
    experiment = done.experiment
    theta, homes = plain_linear.joined(experiment.initial), [s.home_edge for s in experiment.population.seats]
    grads = {seat: np.zeros_like(theta) for seat in range(4)}
    for _ in range(2):
        models = []
        for edge in range(2):
            w = theta
            for _ in range(2):
                found = {s: local(experiment, s, w, grads[s]) for s in range(4) if homes[s] == edge}
                for seat, own in found.items():
                    grads[seat] = grads[seat] - alpha * (own - w)
                w = np.mean(list(found.values()), axis=0)
            models.append(w)
        h = np.mean(list(grads.values()), axis=0)
        theta = np.mean(models, axis=0) - h / alpha
    assert flat.distance(done.model, plain_linear.parted(theta)) < 2e-5


@pytest.mark.slow
async def test_feddyn_reaches_a_low_loss_sooner_where_clients_differ() -> None:
    """The paper's claim: at the same rounds its loss is below FedAvg's, also with some of the clients in each round."""
    for more in ({}, {"num_devices": 10, "select": "random", "fraction_train": 0.5, "num_rounds": 10}):
        losses = []
        for alpha in (0.1, 0.0):
            fields = in_one_batch(**{"num_rounds": 5, "local_epochs": 20, "num_edges": 1, **more})
            done = await ran(spec_of(alpha, **fields), agent_devices=(10,), n_edges=1)
            losses.append(plain_linear.loss_of(done.experiment, done.model))
        assert losses[0] < 0.8 * losses[1]
