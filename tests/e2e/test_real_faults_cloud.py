"""The cloud and Redis killed, alone and with everybody else, as real processes: the same bytes in the end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.real_faults import HELD, TRAINS, assert_same_bits, counts, ended_well, lost, of_kind
from tests.soak.waits import until
from tests.soak.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
AWAY_S = 20.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("cloud") / "world", ttl_s=40) as world:
        yield world


@pytest.mark.parametrize(("spec", "seed"), [(TRAINS, 1), (counts(0.5), 2)], ids=["fedavg", "counter"])
def test_cloud_killed_at_random_moments_ends_with_the_same_bytes(
    spec: dict[str, Any], seed: int, world: World, calm: World
) -> None:
    rng = random.Random(seed)
    run = world.submit({**spec, "seed": seed})
    for _ in range(3):
        world.wait_round(run, min(world.info(run).rounds + rng.randrange(2), 3))
        time.sleep(rng.uniform(0, 1.5))  # a moment within the round, not a wait for something
        with world.killed("cloud"):
            pass
    info, details, _ = ended_well(world, run)
    assert lost(details) == {}
    assert_same_bits(calm, info, details)


def test_redis_killed_in_a_round_and_restarted_loses_nothing(world: World, calm: World) -> None:
    with world.gate.closed(from_round=2) as gate:
        run = world.submit(HELD)
        gate.wait("agent-1", 2)
        with world.killed("redis"):
            pass
    info, details, _ = ended_well(world, run)
    assert lost(details) == {}
    assert_same_bits(calm, info, details)


def test_run_pauses_while_redis_is_away_says_so_and_goes_on(world: World, calm: World) -> None:
    run = world.submit(counts(1.0))
    world.wait_round(run, 1)
    with world.killed("redis"):
        ends = time.monotonic() + AWAY_S
        until("the run to say that Redis is away", lambda: "Redis" in str(world.client.run(run).reason), 15)
        while time.monotonic() < ends:
            assert world.topology.dead() == []
            time.sleep(0.5)
    info, details, events = ended_well(world, run)
    reasons = [str(told.get("reason")) for told in of_kind(events, "run.status")]
    assert any("Redis" in reason for reason in reasons), reasons
    assert lost(details) == {}
    assert_same_bits(calm, info, details)


def test_everything_killed_at_once_and_started_again_goes_on(world: World, calm: World) -> None:
    with world.gate.closed(from_round=2) as gate:
        run = world.submit({**HELD, "num_rounds": 4})
        gate.wait("agent-2", 2)
        everybody = ["redis", *world.names]
        with world.killed(*everybody):
            pass
    info, details, _ = ended_well(world, run)
    assert_same_bits(calm, info, details)
    world.wait_all()
