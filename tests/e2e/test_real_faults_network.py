"""A network that misbehaves between cloud, edge and agent, as real connections through a proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.real_faults import TRAINS, assert_same_bits, counts, ended_well, lost, timeouts
from tests.soak.proxy import KINDS, Fault
from tests.soak.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

VISIT_S = 5.0
LATE_S = 12.0
"""Longer than an agent with two seats may take."""
SHORT = {**TRAINS, "local_epochs": 10, "num_rounds": 2, **timeouts(visit_s=VISIT_S)}
HARMLESS = {"reset", "half", "twice", "garble_up", "garble_down"}
"""Asked again, or not noticed: nothing is lost."""
REASONS = {
    "late": {"timeout"},
    "loris_up": {"timeout"},
    "loris_down": {"timeout"},
    "stray": {"wire"},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("net") / "world", proxied=("agent-1", "edge-1"), ttl_s=30) as world:
        world.complete(SHORT)  # so that there are answers of another run to stray
        yield world


@pytest.mark.parametrize("kind", KINDS)
def test_fault_between_edge_and_agent_is_survived_and_told(kind: str, world: World, calm: World) -> None:
    before = len(world.proxy.done)
    world.proxy.arm("agent-1", Fault(kind, LATE_S))
    info, details, _ = ended_well(world, world.submit({**SHORT, "num_edges": 1}))  # so that others make the quorum
    assert world.proxy.done[before:] == [(kind, "agent-1")]
    assert lost(details).keys() == (set() if kind in HARMLESS else REASONS[kind])
    assert_same_bits(calm, info, details)


@pytest.mark.parametrize("kind", ["reset", "half", "garble_up", "garble_down", "twice", "stray"])
def test_fault_between_cloud_and_edge_is_survived_and_told(kind: str, world: World, calm: World) -> None:
    before = len(world.proxy.done)
    world.proxy.arm("edge-1", Fault(kind))
    info, details, _ = ended_well(world, world.submit(SHORT))
    assert world.proxy.done[before:] == [(kind, "edge-1")]
    assert lost(details).keys() == (set() if kind in HARMLESS else REASONS[kind])
    assert_same_bits(calm, info, details)


def test_visit_whose_answer_came_too_late_does_not_count(world: World, calm: World) -> None:
    world.proxy.arm("agent-1", Fault("late", LATE_S))
    run = world.submit(counts(0.2, num_edges=1, **timeouts(visit_s=VISIT_S)))
    info, details, _ = ended_well(world, run)
    late = {row.seat for row in details[0].seats if row.outcome == "failed"}
    assert lost(details) == {"timeout": len(late)}
    assert {row.seat: row.figures["visits"] for row in details[-1].seats} == {
        s: 2 if s in late else 3 for s in range(4)
    }
    assert_same_bits(calm, info, details)
