"""Who visits whom in one attempt at a round: looked at once, when the attempt begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloud_server.nodes.registry import Registry
from cloud_server.runs.placement import Placement
from shared.core.errors import BadInput
from shared.core.validation import did_you_mean
from shared.federation.experiment import Experiment
from shared.federation.messages import EdgePlacement, SeatAddress
from shared.federation.population import latencies
from shared.simulation import PROFILES


@dataclass(frozen=True)
class RoundMap:
    """A round's map.

    Attributes:
        edges: the live edge of each home that is served.
        away: the edge of each home that is not: it is lost, or nobody took the home.
        homes: by taken seat, the home that it visits: its own, or while that edge is lost the nearest served one;
            where the client is the edge, its devices wait for it.
        places: by taken seat, where it sits.
        absent: taken seats whose agent is not heard.
        offline: taken seats whose agent was taken offline.
        profiles: with `devices.profile: agent`, by taken seat the profile of its agent.
    """

    edges: Mapping[int, str]
    away: Mapping[int, str]
    home_edges: Mapping[int, int]
    addresses: Mapping[int, SeatAddress]
    absent: frozenset[int]
    offline: frozenset[int]
    profiles: Mapping[int, str] = field(default_factory=dict)

    def seats_at(self, home: int) -> list[int]:
        """The taken seats that visit a home, sorted."""
        return sorted(seat for seat, visited in self.home_edges.items() if visited == home)

    def edge_placement(self, run_id: str, home: int) -> EdgePlacement:
        """Who visits a home, and who of them is not heard or offline."""
        there = self.seats_at(home)
        return EdgePlacement(
            run_id=run_id,
            edge=home,
            addresses={seat: self.addresses[seat] for seat in there},
            absent=tuple(seat for seat in there if seat in self.absent),
            offline=tuple(seat for seat in there if seat in self.offline),
            profiles={seat: self.profiles[seat] for seat in there if seat in self.profiles},
        )

    def guests(self, experiment: Experiment) -> dict[int, int]:
        """Seats that visit another home than their own, with that home."""
        return {seat: home for seat, home in self.home_edges.items() if experiment.seat(seat).home_edge != home}


def round_map(experiment: Experiment, binding: Placement, registry: Registry) -> RoundMap:
    """The map of who is there now."""
    names = {home.number: binding.edges.get(home.number, "") for home in experiment.population.edges}
    edges = {home: name for home, name in names.items() if registry.edge_is_live(name)}
    away = {home: name for home, name in names.items() if home not in edges}
    places = {
        seat: SeatAddress(agent=agent, url=registry.agents[agent].url if agent in registry.agents else "")
        for seat, agent in binding.agents.items()
    }
    absent = frozenset(seat for seat, agent in binding.agents.items() if not registry.agent_is_live(agent))
    offline = frozenset(seat for seat, agent in binding.agents.items() if registry.is_offline(agent))
    profiles = _profiles(binding, registry) if experiment.spec.devices.by_agent else {}
    return RoundMap(edges, away, _visited(experiment, binding, edges), places, absent, offline, profiles)


def _profiles(binding: Placement, registry: Registry) -> dict[int, str]:
    """By taken seat the profile of its agent; the default for an agent that is known no more.

    Raises:
        BadInput: an agent has a profile that is not in the catalogue.
    """
    found = {}
    for seat, agent in sorted(binding.agents.items()):
        entry = registry.agents.get(agent)
        found[seat] = entry.acts_as if entry else "standard"
        if found[seat] not in PROFILES:
            why = f"agent {agent} has the profile {found[seat]!r}" + did_you_mean(found[seat], PROFILES)
            raise BadInput(f"devices.profile: agent: {why}", field="devices.profile")
    return found


def _visited(experiment: Experiment, binding: Placement, edges: Mapping[int, str]) -> dict[int, int]:
    served = sorted(edges)
    visited: dict[int, int] = {}
    far = latencies(experiment.spec) if served else None
    for seat in binding.agents:
        home = experiment.seat(seat).home_edge
        if home in edges:
            visited[seat] = home
        elif far is not None and experiment.spec.client == "device":
            visited[seat] = min(served, key=lambda number: (far[seat, number], number))
    return visited
