"""Twins and planned shares when real processes are killed: an agent during the work on its share, and edges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.simulation.digital_twin import TwinList
from tests.e2e.real_faults import FEDAVG, GATED, assert_same_bits, completed_run
from tests.soak.deployment import Deployment
from tests.soak.gate import Gate
from tests.waits import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# ---- an agent


@pytest.fixture
def short_ttl(tmp_path: Path) -> Iterator[Deployment]:
    """A deployment in which a silent agent is lost after a few seconds; each agent has one device."""
    with Deployment(tmp_path / "deployment", edges=1, devices=3, agents=3) as deployment:
        yield deployment


PLANNED: dict[str, Any] = {
    **GATED,
    "num_edges": 1,
    "num_devices": 3,
    "num_rounds": 2,
    "client": "edge",
    "edge_worker": False,
    "schedule": "free_compute",
}
"""FedAvg on three equal devices of one edge."""


def test_share_of_a_killed_agent_is_trained_by_the_others_and_its_twin_records_the_failure(
    short_ttl: Deployment, reference: Deployment
) -> None:
    with short_ttl.gate.closed() as gate:
        run = short_ttl.submit(PLANNED)
        gate.wait("agent-2")
        victim = short_ttl.agent("agent-2")
        assert victim is not None
        with short_ttl.killed("agent-2"):
            gate.open()
            short_ttl.finish(run)
    info, details, _ = completed_run(short_ttl, run)
    first = details[0]
    (failed,) = [row for row in first.seats if row.outcome == "failed"]
    assert (failed.seat, failed.wave) == (*victim.seats, 0)
    others = [row for row in first.seats if row.outcome == "used"]
    assert {row.wave for row in others} == {0, 1}
    assert {row.seat for row in others} == {0, 1, 2} - {failed.seat}
    for detail in details:  # each sample is trained on once: the rows add up to all samples
        assert sum(row.n_samples for row in detail.seats if row.outcome == "used") == 400
    (twin,) = short_ttl.client.agent_twins(victim.agent, run).twins
    seen = twin.history[0]
    assert (twin.seat, seen.outcome, seen.reason, seen.took_s) == (failed.seat, "failed", failed.reason, None)
    assert (twin.health, twin.strikes) == ("offline", 1)
    assert_same_bits(reference, info, details)


# ---- edges


@pytest.fixture(scope="module")
def long_ttl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment in which an edge has time to restart before it counts as lost."""
    with Deployment(tmp_path_factory.mktemp("long_ttl") / "deployment", ttl_s=40) as deployment:
        yield deployment


DTPFL: dict[str, Any] = {
    **FEDAVG,
    "algorithm": {"name": "probe_dtpfl", "params": {"personal_layers": 1, "pretrain_rounds": 3, "threshold": 0}},
    "num_rounds": 6,
    "edge_rounds": 2,
    "client": "edge",
    "test_fraction": 0.3,
    "schedule": "free_compute",
    "overrun": 1.5,
    "devices": {
        "profile": {
            "compute_sps": {"name": "uniform", "low": 50, "high": 500},
            "delay_s": {"name": "uniform", "low": 0, "high": 2},
            "load": {"name": "steps", "every_s": 1, "low": 0.2},
        }
    },
}
"""Two users with two devices and a worker each, whose speeds the twins must learn; each user is its own group."""


def results_of(deployment: Deployment, run: str) -> dict[str, Any]:
    """Returns a run's results: the global model, the users' models, the record of each round, and all twins."""
    info, record = deployment.info(run), deployment.client.rounds(run).rounds
    models = {name: b"".join(deployment.client.download(run, "models", name)) for name in info.models}
    rounds = [(row.model_sha256, row.figures, row.simulated_s, row.n_visits, row.failures) for row in record]
    return {"model": info.model_sha256, "models": models, "rounds": rounds, "twins": twins_in(deployment, run)}


def twins_in(deployment: Deployment, run: str) -> list[TwinList]:
    """Returns the twins that both edges keep for a run."""
    return [deployment.client.twins(edge, run) for edge in ("edge-1", "edge-2")]


@pytest.fixture(scope="module")
def reference_results(reference: Deployment) -> dict[str, Any]:
    """The results of the run in the deployment without faults."""
    found = results_of(reference, reference.complete(DTPFL).run)
    assert len(set(found["models"].values())) == 3  # the global model and one for each user
    histories = [twin.history for edge in found["twins"] for twin in edge.twins]
    assert any(seen.outcome == "refused" for history in histories for seen in history), (
        "no device was refused for overrunning"
    )
    return found


def pause_after(deployment: Deployment, run: str, round_no: int, gate: Gate) -> None:
    """Pause a run after a round whose visits the gate holds."""
    client = deployment.client
    gate.wait("agent-1", round_no)
    until(f"a pause of {run}", lambda: client.pause(run).status == "pausing")
    gate.hold(round_no + 1)
    until(f"{run} to be paused", lambda: client.run(run).status == "paused")
    assert deployment.info(run).rounds == round_no


def resume(deployment: Deployment, run: str) -> None:
    """Resume a run."""
    client = deployment.client
    until(f"{run} to go on", lambda: client.run(run).status != "paused" or not client.resume(run))


def test_edge_killed_between_rounds_of_either_phase_restores_twins_layers_and_group(
    long_ttl: Deployment, reference_results: dict[str, Any]
) -> None:
    with long_ttl.gate.closed() as gate:
        run = long_ttl.submit(DTPFL)
        for round_no in (2, 5):
            gate.hold(round_no)
            pause_after(long_ttl, run, round_no, gate)
            kept = twins_in(long_ttl, run)
            with long_ttl.killed("edge-1"):
                pass
            assert until("the twins", lambda: twins_in(long_ttl, run)) == kept
            assert any(twin.n_learned for twin in kept[0].twins)
            resume(long_ttl, run)
    assert long_ttl.finish(run).status == "completed"
    assert results_of(long_ttl, run) == reference_results


def host_for(deployment: Deployment, run: str, edge: str) -> str:
    """Returns the name of an agent that hosts a device of an edge."""
    mine = {seat.seat for seat in deployment.client.seats(run).seats if seat.edge == edge}
    hosts = {name: deployment.agent(name) for name in deployment.of("agent")}
    return next(name for name, host in hosts.items() if host and mine & set(host.seats))


def test_edge_killed_during_an_edge_round_of_either_phase_restores_them(
    long_ttl: Deployment, reference_results: dict[str, Any]
) -> None:
    with long_ttl.gate.closed() as gate:
        run = long_ttl.submit(DTPFL)
        for round_no in (2, 5):
            gate.hold(round_no)
            long_ttl.wait_round(run, round_no - 1)
            gate.wait(host_for(long_ttl, run, "edge-1"), round_no)
            with long_ttl.killed("edge-1"):
                pass
            assert long_ttl.info(run).rounds == round_no - 1
    assert long_ttl.finish(run).status == "completed"
    assert results_of(long_ttl, run) == reference_results
