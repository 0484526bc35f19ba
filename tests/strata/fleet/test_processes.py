"""The fleet's backend of local processes, with a fake topology that starts none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.core.errors import BadInput
from shared.runtime import memory
from shared.service.api.membership import FleetOrders, FleetReport
from strata.fleet import processes
from strata.fleet.plan import EDGES, Agent, Service
from strata.fleet.processes import Processes, fleet_of
from strata.fleet.reconciler import DRAIN_S, Fleet
from strata.fleet.settings import DrainSettings, FleetSettings
from strata.launcher.topology import Topology


def process(private_bytes: int, returncode: int | None = None) -> Any:
    return SimpleNamespace(private_bytes=private_bytes, returncode=returncode)


def backend(**processes: Any) -> Processes:
    """Returns a backend with agents of 5 devices each."""
    found = {name.replace("_", "-"): process for name, process in processes.items()}
    agents = dict.fromkeys(found, 5)
    topology = SimpleNamespace(
        processes=found, devices_per_agent=list(agents.values()), agents=lambda: agents, edge_names=[]
    )
    return Processes(cast(Topology, topology))


def test_memory_must_suffice_for_starting_and_recently_started_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000_000)
    settled, ended = process(400_000_000), process(0, returncode=1)
    backend(agent_1=settled, agent_2=ended).check(25)
    with pytest.raises(BadInput, match=r"26 processes need at least 1\.04 GB, 1\.00 GB are free"):
        backend(agent_1=settled, agent_2=ended).check(26)
    begun = {f"agent_{number}": process(10_000_000) for number in (1, 2)}  # of 40 MB each
    backend(**begun).check(23)
    with pytest.raises(BadInput, match=r"24 processes need at least 0\.96 GB, 0\.94 GB are free"):
        backend(**begun).check(24)


def test_edges_are_a_service_of_their_own_and_a_stopped_one_is_started_before_a_new_one() -> None:
    running = {"edge-1": process(0), "edge-2": process(0, returncode=0), "agent-1": process(0)}
    started: list[str] = []

    def start_again(name: str) -> None:
        started.append(name)
        running[name] = process(0)

    topology = SimpleNamespace(
        processes=running,
        devices_per_agent=[5],
        agents=lambda: {"agent-1": 5},
        edge_names=["edge-1", "edge-2"],
        start_again=start_again,
        add_edge=lambda: "edge-3",
    )
    found = Processes(cast(Topology, topology))
    assert found.services() == {"device": Service(each=5, exactly=False), "edge": EDGES}
    assert found.agents() == [Agent("agent-1", "device", 5, 1), Agent("edge-1", "edge", 1, 1)]
    assert [found.start("edge", 1), found.start("edge", 1)] == ["edge-2", "edge-3"]
    assert started == ["edge-2"]


class Accepting:
    """A cloud that accepts every report and wants what runs."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Accepting:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def report(self, report: FleetReport) -> FleetOrders:
        return FleetOrders(wanted={}, released=())


def a_fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Returns the fleet of a topology without agents."""
    monkeypatch.setattr(processes, "CloudClient", Accepting)
    topology = SimpleNamespace(
        processes={}, devices_per_agent=[5], agents=dict, edge_names=[], secure=False, url="http://cloud", tier_token=""
    )
    with fleet_of(cast(Topology, topology), "strata-up") as fleet:
        return fleet


def test_the_environment_says_for_how_long_a_local_fleet_waits_for_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEET_DRAIN_S", raising=False)
    assert a_fleet(monkeypatch).drain_s == DRAIN_S
    monkeypatch.setenv("FLEET_SERVICES", "device")  # only the fleet of containers reads it
    monkeypatch.setenv("FLEET_DRAIN_S", "0.5")
    assert a_fleet(monkeypatch).drain_s == 0.5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FLEET_DRAIN_S", "-1", "FLEET_DRAIN_S: must be at least 0"),
        ("FLEET_DRAINS", "5", "did you mean FLEET_DRAIN_S"),
    ],
)
def test_a_wrong_variable_of_the_fleet_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=message):
        a_fleet(monkeypatch)


def test_each_fleet_knows_the_variables_of_the_other() -> None:
    known = DrainSettings.model_fields.keys() | DrainSettings.also_known
    assert known == FleetSettings.model_fields.keys() - {"common"}
