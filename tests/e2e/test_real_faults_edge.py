"""Edges that are killed or frozen, as real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.real_faults import GATED, assert_same_bits, completed_run, counts, lost, of_kind
from tests.soak.deployment import Deployment

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("edges") / "deployment") as deployment:
        yield deployment


@pytest.mark.smoke
def test_devices_of_a_lost_edge_visit_the_other_until_it_returns(deployment: Deployment, reference: Deployment) -> None:
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit(counts(0.0, num_rounds=5))
        gate.wait("agent-1", 2)
        with deployment.killed("edge-2"):
            gate.hold(from_round=4)
            deployment.wait_state("edge-2", "lost")
            gate.wait("agent-1", 4)
        deployment.wait_state("edge-2", "alive", "revived")
    info, details, events = completed_run(deployment, run)
    edges = [{row.edge for row in detail.seats} for detail in details]
    assert edges[0] == edges[-1] == {"edge-1", "edge-2"}
    assert edges[2] == edges[3] == {"edge-1"}
    assert lost(details).keys() == {"lost"}
    assert [data["name"] for data in of_kind(events, "node.lost")] == ["edge-2"]
    assert_same_bits(reference, info, details)
    deployment.wait_all()


def test_round_below_its_quorum_of_edges_is_repeated_on_the_new_round_map(
    deployment: Deployment, reference: Deployment
) -> None:
    with deployment.gate.closed() as gate:
        run = deployment.submit({**GATED, "quorum": 1.0})
        gate.wait("agent-1")
        with deployment.killed("edge-1"):
            gate.open()
            deployment.wait_state("edge-1", "lost")
            deployment.wait_round(run, 1)
    info, details, events = completed_run(deployment, run)
    assert details[0].attempts == 2
    assert [data["round_no"] for data in of_kind(events, "round.retried")] == [1]
    assert lost(details) == {}
    assert_same_bits(reference, info, details)
    deployment.wait_all()


def test_frozen_edge_is_lost_and_revives(deployment: Deployment, reference: Deployment) -> None:
    with deployment.gate.closed(from_round=2) as gate:
        run = deployment.submit(counts(0.0, num_rounds=5))
        gate.wait("agent-1", 2)
        deployment.freeze("edge-1")
        gate.hold(from_round=4)
        deployment.wait_state("edge-1", "lost")
        gate.wait("agent-1", 4)
        deployment.thaw("edge-1")
        deployment.wait_event(run, "node.revived", "edge-1")
    info, details, events = completed_run(deployment, run)
    names = [(event.kind, event.data["name"]) for event in events if event.kind in ("node.lost", "node.revived")]
    assert ("node.lost", "edge-1") in names
    assert ("node.revived", "edge-1") in names
    assert {row.edge for row in details[-1].seats} == {"edge-1", "edge-2"}
    assert_same_bits(reference, info, details)
    deployment.wait_all()
