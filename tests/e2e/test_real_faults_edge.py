"""Edges that are killed or frozen, as real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.real_faults import HELD, assert_same_bits, counts, ended_well, lost, of_kind
from tests.soak.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("edges") / "world") as world:
        yield world


def test_devices_of_a_lost_edge_visit_the_other_until_it_is_back(world: World, calm: World) -> None:
    with world.gate.closed(from_round=2) as gate:
        run = world.submit(counts(0.0, num_rounds=5))
        gate.wait("agent-1", 2)
        with world.killed("edge-2"):
            gate.hold(from_round=4)
            world.wait_state("edge-2", "lost")
            gate.wait("agent-1", 4)
        world.wait_state("edge-2", "alive", "revived")
    info, details, events = ended_well(world, run)
    edges = [{row.edge for row in detail.seats} for detail in details]
    assert edges[0] == edges[-1] == {"edge-1", "edge-2"}
    assert edges[2] == edges[3] == {"edge-1"}
    assert lost(details).keys() == {"lost"}
    assert [told["name"] for told in of_kind(events, "node.lost")] == ["edge-2"]
    assert_same_bits(calm, info, details)
    world.wait_all()


def test_round_that_misses_its_quorum_of_edges_is_done_again_on_the_new_map(world: World, calm: World) -> None:
    with world.gate.closed() as gate:
        run = world.submit({**HELD, "quorum": 1.0})
        gate.wait("agent-1")
        with world.killed("edge-1"):
            gate.open()
            world.wait_state("edge-1", "lost")
            world.wait_round(run, 1)
    info, details, events = ended_well(world, run)
    assert details[0].attempts == 2
    assert [told["round_no"] for told in of_kind(events, "round.retried")] == [1]
    assert lost(details) == {}
    assert_same_bits(calm, info, details)
    world.wait_all()


def test_frozen_edge_is_lost_and_revives(world: World, calm: World) -> None:
    with world.gate.closed(from_round=2) as gate:
        run = world.submit(counts(0.0, num_rounds=5))
        gate.wait("agent-1", 2)
        world.freeze("edge-1")
        gate.hold(from_round=4)
        world.wait_state("edge-1", "lost")
        gate.wait("agent-1", 4)
        world.thaw("edge-1")
        world.wait_event(run, "node.revived", "edge-1")
    info, details, events = ended_well(world, run)
    names = [(event.kind, event.data["name"]) for event in events if event.kind in ("node.lost", "node.revived")]
    assert ("node.lost", "edge-1") in names
    assert ("node.revived", "edge-1") in names
    assert {row.edge for row in details[-1].seats} == {"edge-1", "edge-2"}
    assert_same_bits(calm, info, details)
    world.wait_all()
