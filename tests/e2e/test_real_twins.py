"""Twins and planned shares when real processes are killed: an agent in the middle of its share, and edges."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.simulation.digital_twin import TwinList
from tests.e2e.real_faults import HELD, TRAINS, assert_same_bits, ended_well
from tests.soak.waits import until
from tests.soak.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

# ---- an agent


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[World]:
    """Where a silence of three seconds is a loss; each agent has one device."""
    with World(tmp_path / "world", edges=1, devices=3, agents=3) as world:
        yield world


PLANNED: dict[str, Any] = {
    **HELD,
    "num_edges": 1,
    "num_devices": 3,
    "num_rounds": 2,
    "client": "edge",
    "edge_worker": False,
    "schedule": "free_compute",
}
"""FedAvg on three equal devices of one edge."""


def test_share_of_an_agent_killed_in_the_middle_of_it_is_trained_by_the_others_and_its_twin_shows_it(
    hasty: World, calm: World
) -> None:
    with hasty.gate.closed() as gate:
        run = hasty.submit(PLANNED)
        gate.wait("agent-2")
        victim = hasty.agent("agent-2")
        assert victim is not None
        with hasty.killed("agent-2"):
            gate.open()
            hasty.wait_round(run, 1)
    info, details, _ = ended_well(hasty, run)
    first = details[0]
    (failed,) = [row for row in first.seats if row.outcome == "failed"]
    assert (failed.seat, failed.wave) == (*victim.seats, 0)
    others = [row for row in first.seats if row.outcome == "used"]
    assert {row.wave for row in others} == {0, 1}
    assert {row.seat for row in others} == {0, 1, 2} - {failed.seat}
    for detail in details:  # each sample once: the rows add up to all that there are, and the update stands on as many
        assert sum(row.n_samples for row in detail.seats if row.outcome == "used") == 400
    (twin,) = hasty.client.agent_twins(victim.agent, run).twins
    seen = twin.history[0]
    assert (twin.seat, seen.outcome, seen.reason, seen.took_s) == (failed.seat, "failed", failed.reason, None)
    assert (twin.health, twin.strikes) == ("offline", 1)
    assert_same_bits(calm, info, details)


# ---- edges


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Where an edge has time to come back before it counts as lost."""
    with World(tmp_path_factory.mktemp("patient") / "world", ttl_s=40) as world:
        yield world


DTPFL: dict[str, Any] = {
    **TRAINS,
    "algorithm": {"name": "dtpfl", "params": {"personal_layers": 1, "pretrain_rounds": 3, "threshold": 0}},
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
"""Two users with two devices and a worker each, of whom the twins have something to learn; a group of its own each."""


def left_of(world: World, run: str) -> dict[str, Any]:
    """What a run came to: its models, the users' own and their groups by round, and all twins."""
    info, record = world.info(run), world.client.rounds(run).rounds
    models = {name: b"".join(world.client.download(run, "models", name)) for name in info.models}
    rounds = [(row.model_sha256, row.figures, row.simulated_s, row.n_visits, row.failures) for row in record]
    return {"model": info.model_sha256, "models": models, "rounds": rounds, "twins": twins_in(world, run)}


def twins_in(world: World, run: str) -> list[TwinList]:
    """The twins that both edges keep of a run."""
    return [world.client.twins(edge, run) for edge in ("edge-1", "edge-2")]


@pytest.fixture(scope="module")
def calm_end(calm: World) -> dict[str, Any]:
    """What the run comes to where nobody is hurt."""
    found = left_of(calm, calm.complete(DTPFL).run)
    assert len(set(found["models"].values())) == 3  # the global one, and each user's own
    histories = [twin.history for edge in found["twins"] for twin in edge.twins]
    assert any(seen.outcome == "refused" for history in histories for seen in history), "nobody overran"
    return found


def pause(world: World, run: str) -> int:
    """Pause a run between two of its rounds; how many were committed by then."""
    look = world.client
    until(f"{run} to pause", lambda: look.run(run).status == "paused" or not look.pause(run), 60)
    return world.info(run).rounds


def resume(world: World, run: str) -> None:
    """Let it go on."""
    look = world.client
    until(f"{run} to go on", lambda: look.run(run).status != "paused" or not look.resume(run), 60)


def test_edge_killed_between_rounds_of_either_phase_has_twins_layers_and_group_again(
    patient: World, calm_end: dict[str, Any]
) -> None:
    run = patient.submit(DTPFL)
    for round_no, before in ((1, 3), (4, 6)):
        patient.wait_round(run, round_no)
        assert pause(patient, run) < before
        kept = twins_in(patient, run)
        with patient.killed("edge-1"):
            pass
        assert until("the twins", lambda: twins_in(patient, run), 40) == kept
        assert any(twin.n_learned for twin in kept[0].twins)
        resume(patient, run)
    assert patient.finish(run, 150).status == "completed"
    assert left_of(patient, run) == calm_end


def host_for(world: World, run: str, edge: str) -> str:
    """An agent with a device of an edge."""
    mine = {seat.seat for seat in world.client.seats(run).seats if seat.edge == edge}
    hosts = {name: world.agent(name) for name in world.of("agent")}
    return next(name for name, host in hosts.items() if host and mine & set(host.seats))


def test_edge_killed_in_the_middle_of_an_edge_round_of_either_phase_has_them_again(
    patient: World, calm_end: dict[str, Any]
) -> None:
    run = patient.submit(DTPFL)
    for round_no, before in ((1, 3), (4, 6)):
        patient.wait_round(run, round_no)
        agent = host_for(patient, run, "edge-1")
        patient.freeze(agent)  # the edge waits for it: its round cannot end
        time.sleep(2)
        stands = patient.info(run).rounds
        with patient.killed("edge-1"):
            pass
        assert patient.info(run).rounds == stands < before
        patient.thaw(agent)
    assert patient.finish(run, 150).status == "completed"
    assert left_of(patient, run) == calm_end
