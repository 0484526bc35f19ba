"""Planned shares when a real agent is killed in the middle of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.real_faults import TRAINS
from tests.soak.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Where a silence of three seconds is a loss; each agent has one device."""
    with World(tmp_path_factory.mktemp("twins") / "world", edges=1, devices=3, agents=3) as world:
        yield world


def planned(**changes: Any) -> dict[str, Any]:
    """FedAvg on three equal devices of one edge; a share takes some seconds of computing."""
    shape = {"num_edges": 1, "num_devices": 3, "client": "edge", "edge_worker": False, "schedule": "free_compute"}
    return {**TRAINS, "local_epochs": 300, **shape, **changes}


def test_share_of_an_agent_killed_in_the_middle_of_it_is_trained_by_the_others_and_its_twin_shows_it(
    hasty: World,
) -> None:
    run = hasty.submit(planned(num_rounds=2))
    hasty.wait_visiting("agent-2")
    victim = hasty.agent("agent-2")
    assert victim is not None
    with hasty.killed("agent-2"):
        hasty.wait_round(run, 1)
    info = hasty.finish(run, 150.0)
    assert info.status == "completed", info.reason
    for detail in hasty.details(info):
        assert sum(row.n_samples for row in detail.seats if row.outcome == "used") == 400
    first = hasty.details(info)[0]
    (lost,) = [row for row in first.seats if row.outcome == "failed"]
    assert [lost.seat] == list(victim.seats)
    assert {row.wave for row in first.seats if row.outcome == "used"} == {0, 1}
    (twin,) = hasty.client.device_twins(victim.agent, run).twins
    assert (twin.seat, twin.history[0].outcome, twin.history[0].reason) == (lost.seat, "failed", lost.reason)
    assert twin.strikes > 0
