"""Agents that are killed, frozen, slow, or removed for good, as real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.core.number_sets import NumberSet
from tests.e2e.real_faults import GATED, assert_same_bits, completed_run, counts, lost, of_kind, timeouts
from tests.soak.deployment import Deployment
from tests.waits import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SILENT_S = 2.0
"""Several heartbeats."""


@pytest.fixture(scope="module")
def long_ttl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment in which an agent has time to restart before it counts as lost."""
    with Deployment(tmp_path_factory.mktemp("long_ttl") / "deployment", ttl_s=40) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def short_ttl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment in which a silent agent is lost after a few seconds."""
    with Deployment(tmp_path_factory.mktemp("short_ttl") / "deployment") as deployment:
        yield deployment


@pytest.mark.smoke
def test_agent_killed_mid_visit_and_restarted_repeats_its_visit_and_nothing_is_lost(
    long_ttl: Deployment, reference: Deployment
) -> None:
    with long_ttl.gate.closed() as gate:
        run = long_ttl.submit(GATED)
        begun = gate.wait("agent-1")
        with long_ttl.killed("agent-1"):
            pass
        until("the visit to start again", lambda: gate.arrivals("agent-1").count(begun) == 2)
    info, details, _ = completed_run(long_ttl, run)
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


def test_restarted_agent_continues_from_its_last_used_visit(long_ttl: Deployment) -> None:
    with long_ttl.gate.closed(from_round=2) as gate:
        run = long_ttl.submit(counts(0.0, num_rounds=4))
        for round_no in (2, 3):
            gate.wait("agent-2", round_no)
            with long_ttl.killed("agent-2"):
                pass
            gate.hold(from_round=round_no + 1)
    _, details, _ = completed_run(long_ttl, run)
    assert lost(details) == {}
    assert {row.seat: row.figures["visits"] for row in details[-1].seats} == dict.fromkeys(range(4), 4)


def test_rounds_continue_without_a_lost_agent_which_later_returns_with_its_state(short_ttl: Deployment) -> None:
    with short_ttl.gate.closed(from_round=2) as gate:
        run = short_ttl.submit(counts(0.0, num_rounds=5, num_edges=1))
        gate.wait("agent-2", 2)
        gone = short_ttl.agent("agent-2")
        assert gone is not None
        with short_ttl.killed("agent-2"):
            gate.hold(from_round=4)
            short_ttl.wait_state("agent-2", "lost")
            gate.wait("agent-1", 4)
        short_ttl.wait_event(run, "node.revived", gone.agent)
    _, details, events = completed_run(short_ttl, run)
    assert lost(details).keys() == {"lost"}
    assert not any(row.fresh_state for detail in details for row in detail.seats)
    assert {row.outcome for row in details[-1].seats} == {"used"}
    away = {row.agent for detail in details for row in detail.seats if row.outcome == "failed"}
    assert {data["name"] for data in of_kind(events, "node.lost")} == away
    assert {data["name"] for data in of_kind(events, "node.revived")} == away
    assert of_kind(events, "seat.moved") == []
    short_ttl.wait_all()


def test_edge_waits_for_a_slow_agent_but_not_for_a_silent_one(short_ttl: Deployment, reference: Deployment) -> None:
    with short_ttl.gate.closed() as gate:
        run = short_ttl.submit(counts(0.0, num_rounds=1, num_edges=1))
        gate.wait("agent-1")
        gate.wait("agent-2")
        silent = short_ttl.agent("agent-2")
        assert silent is not None
        short_ttl.freeze("agent-2")
        short_ttl.wait_state("agent-2", "lost")
    info, details, _ = completed_run(short_ttl, run)
    short_ttl.thaw("agent-2")
    short_ttl.wait_all()
    assert lost(details) == {"lost": 2}
    assert {row.seat for row in details[0].seats if row.outcome == "failed"} == set(silent.seats)
    assert_same_bits(reference, info, details)


def test_agent_frozen_for_less_than_its_ttl_loses_nothing(long_ttl: Deployment, reference: Deployment) -> None:
    with long_ttl.gate.closed() as gate:
        run = long_ttl.submit(GATED)
        gate.wait("agent-1")
        long_ttl.freeze("agent-1")
        until("it is silent", lambda: (agent := long_ttl.agent("agent-1")) and agent.last_seen_s > SILENT_S)
        long_ttl.thaw("agent-1")
    info, details, events = completed_run(long_ttl, run)
    assert lost(details) == {}
    assert of_kind(events, "node.lost") == []
    assert_same_bits(reference, info, details)


def test_seats_of_a_removed_agent_move_to_another_with_fresh_state_and_the_record_says_so(
    short_ttl: Deployment,
) -> None:
    with short_ttl.gate.closed(from_round=3) as gate:
        run = short_ttl.submit(counts(0.0, num_rounds=5, **timeouts(reseat_after_s=0)))
        gate.wait("agent-1", 3)
        gone, added = short_ttl.agent("agent-2"), short_ttl.topology.add_agent(2)
        assert gone is not None
        short_ttl.wait_state(added, "alive")
        short_ttl.kill("agent-2")
        short_ttl.wait_state("agent-2", "lost")
    _, details, events = completed_run(short_ttl, run)
    moved = {seat: data["agent"] for data in of_kind(events, "seat.moved") for seat in NumberSet.parse(data["seats"])}
    assert moved.keys() == set(gone.seats)
    other = short_ttl.agent(added)
    assert other is not None
    assert {*moved.values()} == {other.agent}
    assert {row.seat for detail in details for row in detail.seats if row.fresh_state} == moved.keys()
    assert {row.outcome for row in details[-1].seats} == {"used"}
