"""Network faults between cloud, edge and agent, on real connections through a proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.real_faults import FEDAVG, assert_same_bits, completed_run, counts, lost, timeouts
from tests.soak.deployment import Deployment
from tests.soak.proxy import KINDS, Fault

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VISIT_S = 5.0
LATE_S = 12.0
"""This is longer than an agent with two seats may take."""
SHORT = {**FEDAVG, "local_epochs": 10, "num_rounds": 2, **timeouts(visit_s=VISIT_S)}
HARMLESS = {"reset", "half", "twice", "garble_up", "garble_down"}
"""After these faults the request is repeated, or they have no effect: nothing is lost."""
REASONS = {
    "late": {"timeout"},
    "loris_up": {"timeout"},
    "loris_down": {"timeout"},
    "stray": {"wire"},
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(
        tmp_path_factory.mktemp("net") / "deployment", proxied=("agent-1", "edge-1"), ttl_s=30
    ) as deployment:
        deployment.complete(SHORT)  # so that the proxy has answers of another run
        yield deployment


@pytest.mark.parametrize("kind", KINDS)
def test_fault_between_edge_and_agent_is_survived_and_recorded(
    kind: str, deployment: Deployment, reference: Deployment
) -> None:
    before = len(deployment.proxy.done)
    deployment.proxy.arm("agent-1", Fault(kind, LATE_S))
    spec = {**SHORT, "num_edges": 1}  # so that the other agent meets the quorum
    info, details, _ = completed_run(deployment, deployment.submit(spec))
    assert deployment.proxy.done[before:] == [(kind, "agent-1")]
    assert lost(details).keys() == (set() if kind in HARMLESS else REASONS[kind])
    assert_same_bits(reference, info, details)


@pytest.mark.parametrize("kind", ["reset", "half", "garble_up", "garble_down", "twice", "stray"])
def test_fault_between_cloud_and_edge_is_survived_and_recorded(
    kind: str, deployment: Deployment, reference: Deployment
) -> None:
    before = len(deployment.proxy.done)
    deployment.proxy.arm("edge-1", Fault(kind))
    info, details, _ = completed_run(deployment, deployment.submit(SHORT))
    assert deployment.proxy.done[before:] == [(kind, "edge-1")]
    assert lost(details).keys() == (set() if kind in HARMLESS else REASONS[kind])
    assert_same_bits(reference, info, details)


def test_visit_with_a_late_answer_does_not_count(deployment: Deployment, reference: Deployment) -> None:
    deployment.proxy.arm("agent-1", Fault("late", LATE_S))
    run = deployment.submit(counts(0.2, num_edges=1, **timeouts(visit_s=VISIT_S)))
    info, details, _ = completed_run(deployment, run)
    late = {row.seat for row in details[0].seats if row.outcome == "failed"}
    assert lost(details) == {"timeout": len(late)}
    assert {row.seat: row.figures["visits"] for row in details[-1].seats} == {
        s: 2 if s in late else 3 for s in range(4)
    }
    assert_same_bits(reference, info, details)
