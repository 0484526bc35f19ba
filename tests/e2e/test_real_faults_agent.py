"""Agents that are killed, frozen, slow, or go for good, as real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.real_faults import HELD, assert_same_bits, counts, ended_well, lost, of_kind, timeouts
from tests.soak.waits import until
from tests.soak.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Where an agent has time to come back before it counts as lost."""
    with World(tmp_path_factory.mktemp("patient") / "world", ttl_s=40) as world:
        yield world


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Where a silence of three seconds is a loss."""
    with World(tmp_path_factory.mktemp("hasty") / "world") as world:
        yield world


def test_agent_killed_mid_visit_and_restarted_redoes_its_visit_and_nothing_is_lost(patient: World, calm: World) -> None:
    with patient.gate.closed() as gate:
        run = patient.submit(HELD)
        begun = gate.wait("agent-1")
        with patient.killed("agent-1"):
            pass
        until("the visit to be begun again", lambda: gate.arrivals("agent-1").count(begun) == 2, 60)
    info, details, _ = ended_well(patient, run)
    assert lost(details) == {}
    assert_same_bits(calm, info, details)


def test_restarted_agent_counts_on_from_the_last_visit_that_counted(patient: World) -> None:
    with patient.gate.closed(from_round=2) as gate:
        run = patient.submit(counts(0.0, num_rounds=4))
        for round_no in (2, 3):
            gate.wait("agent-2", round_no)
            with patient.killed("agent-2"):
                pass
            gate.hold(from_round=round_no + 1)
    _, details, _ = ended_well(patient, run)
    assert lost(details) == {}
    assert {row.seat: row.figures["visits"] for row in details[-1].seats} == dict.fromkeys(range(4), 4)


def test_round_goes_on_without_an_agent_that_stays_away_and_takes_it_back_with_its_state(hasty: World) -> None:
    with hasty.gate.closed(from_round=2) as gate:
        run = hasty.submit(counts(0.0, num_rounds=5, num_edges=1))
        gate.wait("agent-2", 2)
        gone = hasty.agent("agent-2")
        assert gone is not None
        with hasty.killed("agent-2"):
            gate.hold(from_round=4)
            hasty.wait_state("agent-2", "lost")
            gate.wait("agent-1", 4)
        hasty.wait_event(run, "node.revived", gone.agent)
    _, details, events = ended_well(hasty, run)
    assert lost(details).keys() == {"lost"}
    assert not any(row.fresh_state for detail in details for row in detail.seats)
    assert {row.outcome for row in details[-1].seats} == {"used"}
    away = {row.agent for detail in details for row in detail.seats if row.outcome == "failed"}
    assert {told["name"] for told in of_kind(events, "node.lost")} == away
    assert {told["name"] for told in of_kind(events, "node.revived")} == away
    assert of_kind(events, "seat.moved") == []
    hasty.wait_all()


def test_agent_that_is_slow_but_alive_is_waited_for_beside_one_that_is_silent(hasty: World, calm: World) -> None:
    with hasty.gate.closed() as gate:
        run = hasty.submit(counts(0.0, num_rounds=1, num_edges=1))
        gate.wait("agent-1")
        gate.wait("agent-2")
        silent = hasty.agent("agent-2")
        assert silent is not None
        hasty.freeze("agent-2")
        hasty.wait_state("agent-2", "lost")
    info, details, _ = ended_well(hasty, run)
    hasty.thaw("agent-2")
    hasty.wait_all()
    assert lost(details) == {"lost": 2}
    assert {row.seat for row in details[0].seats if row.outcome == "failed"} == set(silent.seats)
    assert_same_bits(calm, info, details)


def test_frozen_agent_that_goes_on_within_its_time_loses_nothing(hasty: World, calm: World) -> None:
    with hasty.gate.closed() as gate:
        run = hasty.submit(HELD)
        gate.wait("agent-1")
        hasty.freeze("agent-1")
        hasty.wait_state("agent-1", "suspect")
        hasty.thaw("agent-1")
    info, details, _ = ended_well(hasty, run)
    assert_same_bits(calm, info, details)


def test_seats_of_an_agent_that_is_gone_go_to_another_with_fresh_state_and_the_record_says_so(hasty: World) -> None:
    run = hasty.submit(counts(1.0, num_rounds=14, **timeouts(reseat_after_s=2)))
    hasty.wait_round(run, 2)
    gone = hasty.agent("agent-2")
    assert gone is not None
    hasty.kill("agent-2")
    hasty.topology.add_agent(2)
    _, details, events = ended_well(hasty, run)
    moved = {told["seat"]: told["agent"] for told in of_kind(events, "seat.moved")}
    assert moved.keys() == set(gone.seats)
    assert gone.agent not in moved.values()
    assert {row.seat for detail in details for row in detail.seats if row.fresh_state} == moved.keys()
    assert {row.outcome for row in details[-1].seats} == {"used"}
