"""Full disks and jumping clocks of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.e2e.real_faults import GATED, SMALL, assert_same_bits, completed_run, counts, lost
from tests.soak.deployment import Deployment

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
YEAR_S = 400 * 86400.0


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("host") / "deployment"
    names = ("agent-1", "edge-1", "cloud")
    with Deployment(folder, small_disks=("agent-1", "edge-1", "cloud"), clocks=names, ttl_s=30) as deployment:
        yield deployment


def needs_disk(deployment: Deployment, name: str) -> None:
    if name not in deployment.small_disks:
        pytest.skip("only root can mount a small disk, and only where mounting is allowed")


def test_agent_with_a_full_disk_fails_its_visits_with_that_reason_until_there_is_space(
    deployment: Deployment, reference: Deployment
) -> None:
    needs_disk(deployment, "agent-1")
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit(counts(0.0, num_rounds=6, num_edges=1))
        gate.wait("agent-1", 2)
        deployment.fill_disk("agent-1")
        gate.hold(from_round=4)
        gate.wait("agent-2", 4)
        deployment.free_disk("agent-1")
    info, details, _ = completed_run(deployment, run)
    assert lost(details).keys() == {"storage_failed"}
    assert {row.outcome for row in details[-1].seats} == {"used"}
    assert_same_bits(reference, info, details)


def test_edge_with_a_full_disk_fails_its_rounds_with_that_reason_until_there_is_space(deployment: Deployment) -> None:
    needs_disk(deployment, "edge-1")
    stateful = {
        "algorithm": "probe_edge",
        "client": "edge",
        "schedule": "equal",
    }  # the edge stores a new state in each round
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit({**SMALL, **stateful, "num_rounds": 6})
        gate.wait("agent-1", 2)
        deployment.fill_disk("edge-1")
        gate.hold(from_round=4)
        gate.wait("agent-1", 4)
        deployment.free_disk("edge-1")
    info = deployment.finish(run)
    assert info.status == "completed", info.reason
    rows = [row for detail in deployment.details(info) for row in detail.edges if row.edge == "edge-1"]
    assert {row.reason for row in rows if row.outcome == "failed"} == {"storage_failed"}
    assert rows[-1].outcome == "used"


def test_run_fails_when_the_clouds_disk_is_full_and_resumes_with_the_same_bytes(
    deployment: Deployment, reference: Deployment
) -> None:
    needs_disk(deployment, "cloud")
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit(GATED)
        gate.wait("agent-1", 2)
        deployment.fill_disk("cloud")
    failed = deployment.finish(run)
    assert failed.status == "failed"
    assert "No space left" in str(failed.reason)
    deployment.free_disk("cloud")
    deployment.client.resume(run)
    info, details, _ = completed_run(deployment, run)
    assert_same_bits(reference, info, details)


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
def test_wall_clock_that_jumps_loses_nothing(jump_s: float, deployment: Deployment, reference: Deployment) -> None:
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit(GATED)
        gate.wait("agent-1", 2)
        for name in ("cloud", "edge-1", "agent-1"):
            deployment.set_clock(name, jump_s)
    info, details, events = completed_run(deployment, run)
    first, last = (datetime.fromisoformat(event.at).timestamp() for event in (events[0], events[-1]))
    assert abs(last - first) > YEAR_S / 2  # the cloud saw it jump
    assert lost(details) == {}
    assert_same_bits(reference, info, details)
