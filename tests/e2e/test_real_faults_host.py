"""Disks that are full and clocks that jump, as real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.real_faults import TRAINS, assert_same_bits, counts, ended_well, lost
from tests.soak.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
YEAR_S = 400 * 86400.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("host") / "world"
    names = ("agent-1", "edge-1", "cloud")
    with World(folder, small_disks=("agent-1", "edge-1", "cloud"), clocks=names, ttl_s=30) as world:
        yield world


def needs_disk(world: World, name: str) -> None:
    if name not in world.small_disks:
        pytest.skip("a small disk can be mounted by root only, where mounting is allowed")


def test_agent_with_a_full_disk_fails_its_visits_by_name_until_there_is_room(world: World, calm: World) -> None:
    needs_disk(world, "agent-1")
    run = world.submit(counts(0.5, num_rounds=6, num_edges=1))
    world.wait_round(run, 1)
    world.fill_disk("agent-1")
    world.wait_round(run, 3)
    world.free_disk("agent-1")
    info, details, _ = ended_well(world, run)
    assert lost(details).keys() == {"storage_failed"}
    assert {row.outcome for row in details[-1].seats} == {"used"}
    assert_same_bits(calm, info, details)


def test_edge_with_a_full_disk_loses_its_rounds_by_name_until_there_is_room(world: World) -> None:
    needs_disk(world, "edge-1")
    remembers = {"algorithm": "probe_edge", "client": "edge", "schedule": "equal"}  # each round a new state at the edge
    run = world.submit({**TRAINS, **remembers, "num_rounds": 8})
    world.wait_round(run, 1)
    world.fill_disk("edge-1")
    world.wait_round(run, 4)
    world.free_disk("edge-1")
    info = world.finish(run)
    assert info.status == "completed", info.reason
    rows = [row for detail in world.details(info) for row in detail.edges if row.edge == "edge-1"]
    assert {row.reason for row in rows if row.outcome == "failed"} == {"storage_failed"}
    assert rows[-1].outcome == "used"


def test_run_of_a_cloud_with_a_full_disk_fails_by_name_and_resumes_with_the_same_bytes(
    world: World, calm: World
) -> None:
    needs_disk(world, "cloud")
    run = world.submit(TRAINS)
    world.wait_round(run, 1)
    world.fill_disk("cloud")
    failed = world.finish(run)
    assert failed.status == "failed"
    assert "No space left" in str(failed.reason)
    world.free_disk("cloud")
    world.client.resume(run)
    info, details, _ = ended_well(world, run)
    assert_same_bits(calm, info, details)


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
def test_wall_clock_that_jumps_loses_nothing(jump_s: float, world: World, calm: World) -> None:
    run = world.submit(TRAINS)
    world.wait_round(run, 1)
    for name in ("cloud", "edge-1", "agent-1"):
        world.set_clock(name, jump_s)
    info, details, _ = ended_well(world, run)
    assert lost(details) == {}
    assert_same_bits(calm, info, details)
