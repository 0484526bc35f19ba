"""FedBuff where tiers wait for all: FedAvg, and what its parameter may be.

Staleness, buffers and both tiers are beside references in `tests/edge_server/rounds` and `tests/cloud_server/runs`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec
from strata.checks.monitor import leaves
from tests.federation import small_spec
from tests.shared.algorithms.layouts import run


@pytest.mark.parametrize("edge_rounds", [1, 2])
@pytest.mark.parametrize("sync", [{}, {"devices": {"mode": "asynchronous", "buffer": "all"}}], ids=["all", "buffer"])
async def test_with_equal_clients_and_rate_1_it_is_fedavg(tmp_path: Path, edge_rounds: int, sync: object) -> None:
    """To rounding: 300 samples are 50 for each of six devices; those of one speed fill a buffer of all at once."""
    profile = {"up_bps": 1e15, "down_bps": 1e15, "latency_s": 0, "delay_s": 1e9}
    spec = small_spec(edge_rounds=edge_rounds, partition="iid", devices={"profile": profile, "edge_latency_s": 0})
    plain = await run(tmp_path, spec)
    found = await run(tmp_path, {**spec, "algorithm": "fedbuff", "sync": sync})
    other = {**spec, "algorithm": {"name": "fedbuff", "params": {"server_lr": 0.5}}, "sync": sync}
    assert {seat.n_train for seat in plain.experiment.population.seats} == {50}
    for name, tensor in plain.model.items():
        assert abs(found.model[name] - tensor).max() < 1e-6
    assert leaves((await run(tmp_path, other)).state) != leaves(found.state)


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_beyond_its_bounds_is_refused_by_its_path(rate: float) -> None:
    with pytest.raises(BadInput) as refused:
        parse_spec({"algorithm": {"name": "fedbuff", "params": {"server_lr": rate}}})
    assert refused.value.field == "algorithm.params.server_lr"
