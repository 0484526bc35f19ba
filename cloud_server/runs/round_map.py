"""Which seats visit which edge in one attempt at a round, determined once, when the attempt begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloud_server.nodes.registry import Registry
from cloud_server.runs.placement import Placement
from shared.federation.experiment import Experiment
from shared.federation.messages import EdgePlacement, SeatAddress
from shared.federation.population import latencies


@dataclass(frozen=True)
class RoundMap:
    """The map of a round. Edges are numbered as in the run; their names are those of processes.

    Attributes:
        edges: by edge, the name of the live process that serves it.
        away: by edge that is not served, the name of its lost process; empty if it never had one.
        visited: by taken seat, the edge that it visits: its own or, while that is lost, the nearest that is served.
            Where edges are the clients, the devices of a lost edge visit none.
        addresses: by taken seat, its agent and the agent's URL.
        absent: taken seats whose agent is lost.
        offline: taken seats whose agent was taken offline.
        profiles: by taken seat, the profile of its agent; only with `devices.profile: agent`.
    """

    edges: Mapping[int, str]
    away: Mapping[int, str]
    visited: Mapping[int, int]
    addresses: Mapping[int, SeatAddress]
    absent: frozenset[int]
    offline: frozenset[int]
    profiles: Mapping[int, str] = field(default_factory=dict)

    def seats_at(self, edge: int) -> list[int]:
        """The taken seats that visit an edge, sorted."""
        return sorted(seat for seat, visited in self.visited.items() if visited == edge)

    def edge_placement(self, run_id: str, edge: int) -> EdgePlacement:
        """The part of the map that one edge needs."""
        seats = self.seats_at(edge)
        return EdgePlacement(
            run_id=run_id,
            edge=edge,
            addresses={seat: self.addresses[seat] for seat in seats},
            absent=tuple(seat for seat in seats if seat in self.absent),
            offline=tuple(seat for seat in seats if seat in self.offline),
            profiles={seat: self.profiles[seat] for seat in seats if seat in self.profiles},
        )


def round_map(experiment: Experiment, placement: Placement, registry: Registry) -> RoundMap:
    """The map for a round that begins now."""
    names = {edge.number: placement.edges.get(edge.number, "") for edge in experiment.population.edges}
    edges = {edge: name for edge, name in names.items() if registry.edge_is_live(name)}
    away = {edge: name for edge, name in names.items() if edge not in edges}
    addresses = {
        seat: SeatAddress(agent=agent, url=registry.agents[agent].url if agent in registry.agents else "")
        for seat, agent in placement.agents.items()
    }
    absent = frozenset(seat for seat, agent in placement.agents.items() if not registry.agent_is_live(agent))
    offline = frozenset(seat for seat, agent in placement.agents.items() if registry.is_offline(agent))
    profiles = _profiles(placement, registry) if experiment.spec.devices.by_agent else {}
    return RoundMap(edges, away, _visited(experiment, placement, edges), addresses, absent, offline, profiles)


def _profiles(placement: Placement, registry: Registry) -> dict[int, str]:
    """By taken seat the profile of its agent; the default for an agent that is no longer registered."""
    agents = registry.agents
    return {
        seat: agents[agent].effective_profile if agent in agents else "standard"
        for seat, agent in sorted(placement.agents.items())
    }


def _visited(experiment: Experiment, placement: Placement, edges: Mapping[int, str]) -> dict[int, int]:
    served = sorted(edges)
    visited: dict[int, int] = {}
    far = latencies(experiment.spec) if served else None
    for seat in placement.agents:
        own = experiment.seat(seat).home_edge
        if own in edges:
            visited[seat] = own
        elif far is not None and experiment.spec.client == "device":
            visited[seat] = min(served, key=lambda number: (far[seat, number], number))
    return visited
