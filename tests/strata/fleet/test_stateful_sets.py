"""Scaling StatefulSets: pods by their numbers, the last ones first, and the fleet's loop with them."""

from __future__ import annotations

import pytest

from strata.fleet.plan import Agent
from strata.fleet.reconciler import Fleet
from strata.fleet.scale_api import ClusterError, Scale, ScaleChanged
from strata.fleet.stateful_sets import ATTEMPTS, StatefulSets
from tests.strata.fleet.test_reconciler import FakeCloud


class FakeScales:
    """The scales of some StatefulSets; `settle` does what Kubernetes would."""

    def __init__(self, **sets: int) -> None:
        self.wanted = {f"s-{name}": number for name, number in sets.items()}
        self.running = dict(self.wanted)
        self.why_not: str | None = None
        self.did: list[str] = []
        self.conflicts = 0

    def read(self, name: str) -> Scale:
        if self.why_not:
            raise ClusterError(self.why_not)
        return Scale(wanted=self.wanted[name], running=self.running[name], version=str(len(self.did)))

    def write(self, name: str, wanted: int, version: str) -> None:
        assert version == str(len(self.did))
        if self.conflicts:
            self.conflicts -= 1
            raise ScaleChanged("changed at the same time")
        self.did.append(f"{name}={wanted}")
        self.wanted[name] = wanted

    def settle(self) -> None:
        self.running = dict(self.wanted)


def made(devices: int = 1, **sets: int) -> tuple[FakeScales, StatefulSets]:
    scales = FakeScales(**{"device": 3, "edge": 2, **sets})
    return scales, StatefulSets(scales, "s-", {"device": devices}, "edge")


def names(agents: list[Agent]) -> list[str]:
    return [agent.name for agent in agents]


def test_agents_and_edges_have_the_names_of_their_pods() -> None:
    scales, sets = made(devices=4)
    assert names(sets.agents()) == ["s-device-0", "s-device-1", "s-device-2", "s-edge-0", "s-edge-1"]
    assert {agent.devices for agent in sets.agents() if agent.service == "device"} == {4}
    scales.wanted["s-device"] = 1  # two are ending
    assert "s-device-2" in names(sets.agents())
    scales.settle()
    assert names(sets.agents()) == ["s-device-0", "s-edge-0", "s-edge-1"]


def test_one_more_is_the_next_number() -> None:
    scales, sets = made()
    assert [sets.start("device", 1), sets.start("edge", 1)] == ["s-device-3", "s-edge-2"]
    assert scales.did == ["s-device=4", "s-edge=3"]


def test_a_change_that_another_came_before_is_tried_again_a_few_times() -> None:
    scales, sets = made()
    scales.conflicts = ATTEMPTS - 1
    assert sets.start("device", 1) == "s-device-3"
    scales.conflicts = ATTEMPTS
    with pytest.raises(ScaleChanged):
        sets.start("device", 1)
    assert scales.did == ["s-device=4"]


def test_only_the_last_pods_can_be_stopped() -> None:
    scales, sets = made(device=5)
    by_number = {agent.number: agent for agent in sets.agents() if agent.service == "device"}
    sets.stop([by_number[3], by_number[1]])
    assert scales.did == []
    sets.stop([by_number[3], by_number[4], by_number[1]])
    assert scales.did == ["s-device=3"]


def test_the_fleet_waits_for_the_last_agent_before_it_stops_those_before_it() -> None:
    """A StatefulSet can end its last pod only, and the round still needs that one."""
    scales, sets = made()
    cloud = FakeCloud(device=1)
    fleet = Fleet("f", sets, cloud)
    cloud.needed = {"s-device-2"}
    fleet.settle()
    assert cloud.last().leaving == ("s-device-1", "s-device-2")
    assert scales.did == []
    cloud.needed = set()
    fleet.settle()
    assert scales.did == ["s-device=1"]
    assert cloud.last().left == ()  # both are ending
    scales.settle()
    fleet.settle()
    assert cloud.last().left == ("s-device-1", "s-device-2")
    assert fleet.error is None


def test_an_agent_that_a_round_needs_for_too_long_is_stopped_with_all_after_it() -> None:
    scales, sets = made()
    cloud, now = FakeCloud(device=1), [0.0]
    fleet = Fleet("f", sets, cloud, drain_s=60, clock=lambda: now[0])
    cloud.needed = {"s-device-1", "s-device-2"}
    fleet.settle()
    now[0] = 61.0
    fleet.settle()
    assert scales.did == ["s-device=1"]


def test_the_fleet_starts_and_stops_edges_with_agents() -> None:
    scales, sets = made()
    cloud = FakeCloud(edges=4, device=2)
    fleet = Fleet("f", sets, cloud)
    for _ in range(3):
        fleet.settle()
        scales.settle()
    assert scales.wanted == {"s-device": 2, "s-edge": 4}


@pytest.mark.parametrize("why", ["the service account may not get statefulsets/scale"])
def test_a_refusal_is_what_the_fleet_reports(why: str) -> None:
    scales, sets = made()
    cloud = FakeCloud(device=5)
    fleet = Fleet("f", sets, cloud)
    scales.why_not = why
    fleet.settle()
    fleet.settle()
    assert cloud.last().error == why
    assert scales.did == []
