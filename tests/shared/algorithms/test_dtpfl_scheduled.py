"""DTPFL as in the paper: the devices and the server of a user train on planned shares of the user's data."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, ran

FOUR: dict[str, Any] = {"n_edges": 4, "agent_devices": (5, 3)}
NEAR: dict[str, Any] = {"latency_s": 0, "up_bps": 1e15, "down_bps": 1e15}


def spec_of(**more: Any) -> dict[str, Any]:
    """Four users with two devices each, of uneven sizes, in three rounds; each mini-batch is divided again."""
    lent = {"profile": {**NEAR, "compute_sps": {"name": "uniform", "low": 200, "high": 1000}}, "edge_latency_s": 0}
    spec = {
        "algorithm": {"name": "dtpfl", "params": {"pretrain_rounds": 1, "threshold": "auto"}},
        "data": {"name": "digits", "n_train": 160, "n_test": 80},
        "partition": {"name": "by_group", "n_groups": 2, "gamma": 0.9},
        "client": "edge",
        "schedule": "free_compute",
        "average_every": "step",
        "num_devices": 8,
        "num_edges": 4,
        "num_rounds": 3,
        "batch_size": 16,
        "lr": 0.1,
        "devices": lent,
        "edge_link": {"worker_sps": 500},
    }
    return {**spec, **more}


def models_of(done: Ended) -> dict[str, Any]:
    ctx = done.experiment.ctx(phase="group", round_no=done.info.rounds, n_clients=4)
    return done.experiment.algorithm.cloud.models(ctx, done.state)


def trainers(done: Ended) -> set[int]:
    return {row.seat for detail in done.rounds for row in detail.seats if row.outcome == "used"}


@pytest.mark.slow
async def test_both_halves_together_with_growing_data_and_changing_loads() -> None:
    """All samples collected so far are trained on once by devices and servers, while users are grouped by kind."""
    loads = {"name": "steps", "every_s": 0.05, "low": 0.2, "high": 1}
    profile = {**NEAR, "compute_sps": {"name": "uniform", "low": 200, "high": 1000}, "load": loads}
    more: dict[str, Any] = {"devices": {"profile": profile, "edge_latency_s": 0}, "arrival_rate": 0.5}
    spec = spec_of(average_every="visit", divide_batch=True, **more)
    done = await ran(spec, **FOUR)
    n = sum(len(edge.train) for edge in done.experiment.population.edges)
    trained = [sum(row.n_samples for row in detail.seats if row.outcome == "used") for detail in done.rounds]
    assert n / 2 <= trained[0] < 0.55 * n
    assert trained[1:] == [n, n]
    assert len(trainers(done)) == 12
    assert sorted(done.state.groups) == [f"edge-{number}" for number in range(4)]
    alone = await ran(spec | {"schedule": "own_data", "divide_batch": False}, **FOUR)
    servers = {seat.number for seat in alone.experiment.population.seats if seat.role == "worker"}
    assert not trainers(alone) & servers
    assert sum(row.simulated_s for row in done.rounds) < sum(row.simulated_s for row in alone.rounds)
    again = await ran(spec, n_edges=4, agent_devices=(1,) * 8)
    assert again.info.model_sha256 == done.info.model_sha256


@pytest.mark.whole
async def test_devices_and_server_step_by_step_equal_the_server_alone() -> None:
    together = await ran(spec_of(), **FOUR)
    alone = await ran(spec_of(edge_link={"worker_sps": 1e12}), **FOUR)  # the server has all free compute
    servers = {seat.number for seat in alone.experiment.population.seats if seat.role == "worker"}
    assert (len(servers), trainers(alone), len(trainers(together))) == (4, servers, 12)
    one, other = models_of(together), models_of(alone)
    assert one.keys() == other.keys() == {"global", *(f"edge-{number}" for number in range(4))}
    assert together.state.groups == alone.state.groups
    assert 1 < len(set(together.state.groups.values())) < 4
    assert max(flat.distance(one[name], other[name]) for name in one) < 1e-5
    assert flat.distance(one["global"], together.experiment.initial) > 1e-2
