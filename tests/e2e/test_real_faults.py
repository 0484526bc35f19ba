"""Agents, edges, the cloud and Redis are killed, frozen or removed, as real processes.

All tests share two deployments. The last test removes an agent for good.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shared.core.number_sets import NumberSet
from tests.e2e.real_faults import FEDAVG, GATED, assert_same_bits, completed_run, counts, lost, of_kind, timeouts
from tests.soak.deployment import Deployment
from tests.waits import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SILENT_S = 2.0
"""Several heartbeats."""
AWAY_S = 20.0


@pytest.fixture(scope="module")
def long_ttl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment in which a process has time to restart before it counts as lost."""
    with Deployment(tmp_path_factory.mktemp("long_ttl") / "deployment", ttl_s=40) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def short_ttl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment in which a silent agent or edge is lost after a few seconds."""
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


# ---- the cloud and Redis


@pytest.mark.parametrize(("spec", "seed"), [(FEDAVG, 1), (counts(0.5), 2)], ids=["fedavg", "counter"])
def test_cloud_killed_at_random_moments_ends_with_the_same_bytes(
    spec: dict[str, Any], seed: int, long_ttl: Deployment, reference: Deployment
) -> None:
    rng, n_rounds = random.Random(seed), list[int]()
    shortest_s = min(detail.wall_s for detail in reference.details(reference.complete(spec)))
    run = long_ttl.submit({**spec, "seed": seed})
    for _ in range(3):
        long_ttl.wait_round(run, min(long_ttl.info(run).rounds + rng.randrange(2), 3))
        time.sleep(rng.uniform(0, shortest_s))  # a random time within the round, not a wait for an event
        n_rounds.append(long_ttl.info(run).rounds)
        with long_ttl.killed("cloud"):
            pass
    assert n_rounds[0] < 3, "no fault fell within the run"
    info, details, _ = completed_run(long_ttl, run)
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


def test_redis_killed_during_a_round_and_restarted_loses_nothing(long_ttl: Deployment, reference: Deployment) -> None:
    with long_ttl.gate.closed(from_round=2) as gate:
        run = long_ttl.submit(GATED)
        gate.wait("agent-1", 2)
        with long_ttl.killed("redis"):
            pass
    info, details, _ = completed_run(long_ttl, run)
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


def test_run_pauses_with_a_reason_while_redis_is_down_and_then_continues(
    long_ttl: Deployment, reference: Deployment
) -> None:
    with long_ttl.gate.closed(from_round=2) as gate:
        run = long_ttl.submit(counts(0.0))
        gate.wait("agent-1", 2)
        with long_ttl.killed("redis"):
            gate.open()
            until("the run's reason to name Redis", lambda: "Redis" in str(long_ttl.client.run(run).reason))
            time.sleep(AWAY_S)  # how long the fault lasts, not a wait for an event
            assert long_ttl.topology.dead() == []
    info, details, events = completed_run(long_ttl, run)
    reasons = [str(data.get("reason")) for data in of_kind(events, "run.status")]
    assert any("Redis" in reason for reason in reasons), reasons
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


@pytest.mark.smoke
def test_run_continues_after_all_processes_were_killed_and_restarted(
    long_ttl: Deployment, reference: Deployment
) -> None:
    with long_ttl.gate.closed(from_round=2) as gate:
        run = long_ttl.submit({**GATED, "num_rounds": 4})
        gate.wait("agent-2", 2)
        all_names = ["redis", *long_ttl.names]
        with long_ttl.killed(*all_names):
            pass
    info, details, _ = completed_run(long_ttl, run)
    assert_same_bits(reference, info, details)
    long_ttl.wait_all()


# ---- edges


def test_devices_of_a_lost_edge_visit_the_other_until_it_returns(short_ttl: Deployment, reference: Deployment) -> None:
    with short_ttl.gate.closed(from_round=2) as gate:
        run = short_ttl.submit(counts(0.0, num_rounds=5))
        gate.wait("agent-1", 2)
        with short_ttl.killed("edge-2"):
            gate.hold(from_round=4)
            short_ttl.wait_state("edge-2", "lost")
            gate.wait("agent-1", 4)
        short_ttl.wait_state("edge-2", "alive", "revived")
    info, details, events = completed_run(short_ttl, run)
    edges = [{row.edge for row in detail.seats} for detail in details]
    assert edges[0] == edges[-1] == {"edge-1", "edge-2"}
    assert edges[2] == edges[3] == {"edge-1"}
    assert lost(details).keys() == {"lost"}
    assert [data["name"] for data in of_kind(events, "node.lost")] == ["edge-2"]
    assert_same_bits(reference, info, details)
    short_ttl.wait_all()


def test_round_below_its_quorum_of_edges_is_repeated_on_the_new_round_map(
    short_ttl: Deployment, reference: Deployment
) -> None:
    with short_ttl.gate.closed() as gate:
        run = short_ttl.submit({**GATED, "quorum": 1.0})
        gate.wait("agent-1")
        with short_ttl.killed("edge-1"):
            gate.open()
            short_ttl.wait_state("edge-1", "lost")
            short_ttl.wait_round(run, 1)
    info, details, events = completed_run(short_ttl, run)
    assert details[0].attempts == 2
    assert [data["round_no"] for data in of_kind(events, "round.retried")] == [1]
    assert lost(details) == {}
    assert_same_bits(reference, info, details)
    short_ttl.wait_all()


def test_frozen_edge_is_lost_and_revives(short_ttl: Deployment, reference: Deployment) -> None:
    with short_ttl.gate.closed(from_round=2) as gate:
        run = short_ttl.submit(counts(0.0, num_rounds=5))
        gate.wait("agent-1", 2)
        short_ttl.freeze("edge-1")
        gate.hold(from_round=4)
        short_ttl.wait_state("edge-1", "lost")
        gate.wait("agent-1", 4)
        short_ttl.thaw("edge-1")
        short_ttl.wait_event(run, "node.revived", "edge-1")
    info, details, events = completed_run(short_ttl, run)
    names = [(event.kind, event.data["name"]) for event in events if event.kind in ("node.lost", "node.revived")]
    assert ("node.lost", "edge-1") in names
    assert ("node.revived", "edge-1") in names
    assert {row.edge for row in details[-1].seats} == {"edge-1", "edge-2"}
    assert_same_bits(reference, info, details)
    short_ttl.wait_all()


# ---- at the end


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
