"""Which seats visit which edge in one attempt at a round, determined once, when the attempt begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cloud_server.nodes.registry import Registry
from cloud_server.runs.placement import PlacementManager
from shared.core.number_sets import EMPTY, NumberSet, SetIndex
from shared.federation.experiment import Experiment
from shared.federation.placements import EdgePlacement, Host

DEFAULT_PROFILE = "standard"
"""The profile of an agent that is no longer registered."""


@dataclass(frozen=True)
class RoundMap:
    """The map of a round. Edges are numbered as in the run; their names are those of processes.

    Attributes:
        run_id: the run.
        edges: by edge, the name of the live process that serves it.
        away: by edge that is not served, the name of its lost process; empty if it never had one.
        hosts: by edge that is served, the agents whose seats visit it: its own and, while others are lost, those to
            which it is the nearest that is served. Where edges are the clients, the devices of a lost edge visit none.
    """

    run_id: str
    edges: Mapping[int, str]
    away: Mapping[int, str]
    hosts: Mapping[int, tuple[Host, ...]]

    @cached_property
    def placements(self) -> Mapping[int, EdgePlacement]:
        """The part of the map that each edge needs."""
        return {edge: _placement(self.run_id, edge, hosts) for edge, hosts in self.hosts.items()}

    @cached_property
    def _index(self) -> tuple[tuple[int, ...], SetIndex]:
        return tuple(self.placements), SetIndex([placement.seats for placement in self.placements.values()])

    def seats_at(self, edge: int) -> NumberSet:
        """The hosted seats that visit an edge."""
        return self.placements[edge].seats if edge in self.placements else EMPTY

    def present_at(self, edge: int) -> NumberSet:
        """Those of them whose agents were present when the round began."""
        return self.placements[edge].present if edge in self.placements else EMPTY

    def edge_of(self, seat: int) -> int | None:
        """The edge that a hosted seat visits, if any."""
        edges, index = self._index
        found = index.find(seat)
        return None if found is None else edges[found]

    def profile(self, seat: int) -> str | None:
        """The profile of a hosted seat's agent, with `devices.profile: agent`."""
        edge = self.edge_of(seat)
        return None if edge is None else self.placements[edge].profile(seat)


@lru_cache(maxsize=16)  # of many seats, an index of them takes longer than all else of a map
def _placement(run_id: str, edge: int, hosts: tuple[Host, ...]) -> EdgePlacement:
    return EdgePlacement(run_id=run_id, edge=edge, hosts=hosts)


def round_map(run_id: str, experiment: Experiment, manager: PlacementManager) -> RoundMap:
    """The map for a round that begins now."""
    registry, placement = manager.registry, manager.placement
    names = {edge.number: placement.edges.get(edge.number, "") for edge in experiment.population.edges}
    edges = {edge: name for edge, name in names.items() if registry.edge_is_live(name)}
    away = {edge: name for edge, name in names.items() if edge not in edges}
    visitors = manager.visitors(frozenset(edges), elsewhere=experiment.spec.client == "device")
    by_agent = experiment.spec.devices.by_agent
    hosts = {
        edge: tuple(_host(registry, agent, seats, by_agent) for agent, seats in visitors[edge].items())
        for edge in sorted(edges)
    }
    return RoundMap(run_id, edges, away, hosts)


def flight_map(
    found: RoundMap, experiment: Experiment, manager: PlacementManager, edge: int, seats: NumberSet
) -> RoundMap:
    """The map for one order, which these seats visit, wherever the seats of an order that is made now would."""
    hosts = found.hosts.get(edge, ())
    if found.seats_at(edge) != seats:
        of_agents = {agent: own & seats for agent, own in sorted(manager.placement.agents.items())}
        by_agent = experiment.spec.devices.by_agent
        hosts = tuple(_host(manager.registry, agent, own, by_agent) for agent, own in of_agents.items() if len(own))
    return RoundMap(found.run_id, found.edges, found.away, {edge: hosts})


def _host(registry: Registry, agent: str, seats: NumberSet, by_agent: bool) -> Host:
    entry = registry.agents.get(agent)
    profile = (entry.effective_profile if entry else DEFAULT_PROFILE) if by_agent else None
    url = entry.url if entry else ""
    if registry.is_offline(agent):
        return Host(agent=agent, url=url, seats=seats, presence="offline", profile=profile)
    presence = "present" if registry.agent_is_live(agent) else "absent"
    return Host(agent=agent, url=url, seats=seats, presence=presence, profile=profile)
