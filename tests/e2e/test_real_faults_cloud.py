"""The cloud and Redis are killed, alone and with all others, as real processes: the final model has the same bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.real_faults import FEDAVG, GATED, assert_same_bits, completed_run, counts, lost, of_kind
from tests.soak.deployment import Deployment
from tests.waits import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
AWAY_S = 20.0


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("cloud") / "deployment", ttl_s=40) as deployment:
        yield deployment


@pytest.mark.parametrize(("spec", "seed"), [(FEDAVG, 1), (counts(0.5), 2)], ids=["fedavg", "counter"])
def test_cloud_killed_at_random_moments_ends_with_the_same_bytes(
    spec: dict[str, Any], seed: int, deployment: Deployment, reference: Deployment
) -> None:
    rng, n_rounds = random.Random(seed), list[int]()
    shortest_s = min(detail.wall_s for detail in reference.details(reference.complete(spec)))
    run = deployment.submit({**spec, "seed": seed})
    for _ in range(3):
        deployment.wait_round(run, min(deployment.info(run).rounds + rng.randrange(2), 3))
        time.sleep(rng.uniform(0, shortest_s))  # a random time within the round, not a wait for an event
        n_rounds.append(deployment.info(run).rounds)
        with deployment.killed("cloud"):
            pass
    assert n_rounds[0] < 3, "no fault fell within the run"
    info, details, _ = completed_run(deployment, run)
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


def test_redis_killed_during_a_round_and_restarted_loses_nothing(deployment: Deployment, reference: Deployment) -> None:
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit(GATED)
        gate.wait("agent-1", 2)
        with deployment.killed("redis"):
            pass
    info, details, _ = completed_run(deployment, run)
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


def test_run_pauses_with_a_reason_while_redis_is_down_and_then_continues(
    deployment: Deployment, reference: Deployment
) -> None:
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit(counts(0.0))
        gate.wait("agent-1", 2)
        with deployment.killed("redis"):
            gate.open()
            until("the run's reason to name Redis", lambda: "Redis" in str(deployment.client.run(run).reason))
            time.sleep(AWAY_S)  # how long the fault lasts, not a wait for an event
            assert deployment.topology.dead() == []
    info, details, events = completed_run(deployment, run)
    reasons = [str(data.get("reason")) for data in of_kind(events, "run.status")]
    assert any("Redis" in reason for reason in reasons), reasons
    assert lost(details) == {}
    assert_same_bits(reference, info, details)


@pytest.mark.smoke
def test_run_continues_after_all_processes_were_killed_and_restarted(
    deployment: Deployment, reference: Deployment
) -> None:
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit({**GATED, "num_rounds": 4})
        gate.wait("agent-2", 2)
        all_names = ["redis", *deployment.names]
        with deployment.killed(*all_names):
            pass
    info, details, _ = completed_run(deployment, run)
    assert_same_bits(reference, info, details)
    deployment.wait_all()
