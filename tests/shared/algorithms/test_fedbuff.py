"""FedBuff where tiers wait for all: FedAvg, and what its parameter may be.

Staleness, buffers and both tiers are beside references in `tests/edge_server/rounds` and `tests/cloud_server/runs`.
"""

from __future__ import annotations

import pytest

from strata.checks.monitor import leaves
from tests.federation import small_spec
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import ran, tried


@pytest.mark.matrix
@pytest.mark.parametrize("edge_rounds", [1, 2])
async def test_with_equal_clients_and_rate_1_it_is_fedavg(edge_rounds: int) -> None:
    """To rounding: 300 samples are 50 for each of six devices; those of one speed fill a buffer of all at once."""
    profile = {"up_bps": 1e15, "down_bps": 1e15, "latency_s": 0, "delay_s": 1e9}
    spec = small_spec(edge_rounds=edge_rounds, partition="iid", devices={"profile": profile, "edge_latency_s": 0})
    buffer = {"devices": {"mode": "asynchronous", "buffer": "all"}}
    plain, all_, half = [
        tried(**spec, algorithm={"name": name, "params": params})
        for name, params in (("fedavg", {}), ("fedbuff", {}), ("fedbuff", {"server_lr": 0.5}))
    ]
    buffered = await ran({**spec, "algorithm": "fedbuff", "sync": buffer})
    assert {seat.n_train for seat in plain.experiment.population.seats} == {50}
    assert flat.distance(all_.model, plain.model) < 1e-6
    assert flat.distance(buffered.model, plain.model) < 1e-6
    assert leaves(half.state) != leaves(all_.state)
