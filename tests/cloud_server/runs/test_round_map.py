"""The round map: a seat visits its home edge, else the nearest live one, or none if edges are the clients."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cloud_server.nodes.liveness import AgentEntry, EdgeEntry, LastSeen
from cloud_server.nodes.registry import Registry
from cloud_server.runs.placement import EdgeMoved, Placement, PlacementManager
from cloud_server.runs.round_map import RoundMap, round_map
from shared.core.number_sets import NumberSet
from shared.core.versions import versions
from shared.federation.experiment import Experiment, ExperimentCache
from shared.federation.population import Latencies
from shared.federation.spec_parser import parse_spec
from shared.service.client import Caller
from tests.fakes.memory_store import MemoryStore

TTL_S, NOW_S = 5.0, 1000.0


def experiment_of(tmp_path: Path, **changes: Any) -> Experiment:
    data = {"name": "digits", "n_train": 300, "n_test": 100}
    numbers = {"num_devices": 9, "num_edges": 3, "max_devices": 9}
    return ExperimentCache(None, tmp_path).of(parse_spec({"data": data, **numbers, **changes}))


def registry_of(edges: Collection[str], silent: Collection[str] = (), silent_s: float = TTL_S + 1) -> Registry:
    """Returns a registry with agents a0 to a8 and some edges; `silent` ones exceeded their TTL."""
    found = Registry(MemoryStore(), Caller(httpx2.AsyncClient()), [], TTL_S, clock=lambda: NOW_S)
    for name in edges:
        found.edges[name] = EdgeEntry(edge=name, url=f"http://{name}", versions=versions())
        found.seen_edges[name] = LastSeen(NOW_S - (silent_s if name in silent else 0), TTL_S)
    for number in range(9):
        agent = f"a{number}"
        found.agents[agent] = AgentEntry(
            agent=agent, name=agent, url=f"http://{agent}", devices=1, profile="standard", versions=versions()
        )
        found.seen_agents[agent] = LastSeen(NOW_S - (silent_s if agent in silent else 0), TTL_S)
    return found


EDGES = ("edge-1", "edge-2", "edge-3")
SEATED = Placement(agents={f"a{n}": NumberSet([n]) for n in range(9)}, edges=dict(enumerate(EDGES)))


def map_of(experiment: Experiment, registry: Registry) -> RoundMap:
    return round_map("r", experiment, PlacementManager(experiment.population, registry, SEATED, 30.0))


def visited(found: RoundMap) -> dict[int, int]:
    """The edge that each hosted seat visits."""
    return {seat: edge for seat in range(9) if (edge := found.edge_of(seat)) is not None}


def absent(found: RoundMap) -> dict[str, list[int]]:
    hosts = (host for hosts in found.hosts.values() for host in hosts)
    return {host.agent: list(host.seats) for host in hosts if host.presence == "absent"}


def test_each_seat_visits_its_home_while_all_edges_are_alive(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path)
    found = map_of(experiment, registry_of(EDGES))
    assert visited(found) == {seat.number: seat.home_edge for seat in experiment.population.seats}
    assert (found.away, absent(found)) == ({}, {})


@pytest.mark.parametrize("association", ["balanced", "latency"])
def test_each_seat_of_a_lost_edge_visits_its_next_nearest_edge(tmp_path: Path, association: str) -> None:
    experiment = experiment_of(tmp_path, association=association)
    lost = 1
    found = map_of(experiment, registry_of(EDGES, silent=["edge-2"]))
    assert (found.edges, found.away) == ({0: "edge-1", 2: "edge-3"}, {1: "edge-2"})
    moved = {seat.number for seat in experiment.population.seats if seat.home_edge == lost}
    assert moved
    assert {seat for seat, edge in visited(found).items() if edge != experiment.seat(seat).home_edge} == moved
    far = Latencies(experiment.spec).rows(0, 9)
    for seat in moved:
        assert far[seat, visited(found)[seat]] == min(far[seat, 0], far[seat, 2])
    assert sorted([*found.seats_at(0), *found.seats_at(2)]) == list(range(9))


def test_devices_of_a_lost_edge_wait_where_the_edge_is_the_client(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, client="edge", algorithm="fedavg")
    found = map_of(experiment, registry_of(EDGES, silent=["edge-2"]))
    own = {seat: experiment.seat(seat).home_edge for seat in range(9)}
    assert visited(found) == {seat: edge for seat, edge in own.items() if edge != 1}


def test_a_silent_agent_is_absent_and_keeps_its_seat(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path)
    found = map_of(experiment, registry_of(EDGES, silent=["a4"]))
    assert absent(found) == {"a4": [4]}
    host = found.placements[experiment.seat(4).home_edge].host(4)
    assert (host.agent, host.presence) == ("a4", "absent")


def test_a_home_whose_edge_was_removed_moves_to_a_spare_edge(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path)
    names = (*EDGES, "edge-9")
    for silent_s, holder in ((TTL_S + 10, "edge-2"), (TTL_S + 60, "edge-9")):
        manager = PlacementManager(
            experiment.population, registry_of(names, ["edge-2"], silent_s), SEATED, reseat_after_s=30
        )
        changes = manager.refresh()
        assert manager.placement.edges == {0: "edge-1", 1: holder, 2: "edge-3"}
        assert changes == ([] if holder == "edge-2" else [EdgeMoved(1, "edge-9", "edge-2")])
