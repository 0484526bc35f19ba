"""The placement of a run: which agent hosts each seat, which process serves each edge. It never affects a result."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.nodes.registry import Registry
from shared.core.errors import NotReady
from shared.core.records import Record
from shared.federation.population import Population


class Placement(Record):
    """The placement of a run as it is stored.

    Attributes:
        agents: by taken seat, the id of the agent that hosts it.
        edges: by edge of the run, the name of the process that serves it.
        present: agents that were registered at the start. They get no more seats as late-comers, so that the number
            of devices does not depend on the capacity that agents happen to have.
        left: by empty seat, the agent that left it and gets it again if it comes back.
        profiles: by seat, the profile of its agent in the last committed round.
    """

    agents: dict[int, str]
    edges: dict[int, str]
    present: tuple[str, ...] = ()
    left: dict[int, str] = Field(default_factory=dict)
    profiles: dict[int, str] = Field(default_factory=dict)


def place_seats(seats: Sequence[int], agents: Sequence[AgentEntry], taken: Mapping[int, str]) -> dict[int, str]:
    """Distributes seats over agents in proportion to their capacity, also beyond it.

    An agent gets consecutive seats: sorted by edge, an edge then has few agents, each with one copy of the model.

    Args:
        seats: the seats to place, those of an edge side by side.
        agents: in any order; (profile, id) decides among equally loaded ones.
        taken: seats placed before, with their agents.

    Returns:
        The agent of each seat.

    Raises:
        NotReady: there are seats but no agents.
    """
    if seats and not agents:
        raise NotReady(f"no agent is alive for seats {list(seats)[:20]}")
    counts = _even(len(seats), agents, Counter(taken.values()))
    names = [agent.agent for agent in sorted(agents, key=lambda agent: (agent.effective_profile, agent.agent))]
    return dict(zip(seats, (name for name in names for _ in range(counts[name])), strict=True))


def _even(n_seats: int, agents: Sequence[AgentEntry], load: Counter[str]) -> Counter[str]:
    """The number of seats that each agent gets, given how many it has (`load`)."""

    def rank(agent: AgentEntry) -> tuple[int, int, str, str]:
        n = load[agent.agent] + given[agent.agent]
        return n // agent.devices, n, agent.effective_profile, agent.agent

    given: Counter[str] = Counter()
    by_id = {agent.agent: agent for agent in agents}
    queue = [rank(agent) for agent in agents]
    heapq.heapify(queue)
    for _ in range(n_seats):
        name = queue[0][-1]
        given[name] += 1
        heapq.heapreplace(queue, rank(by_id[name]))
    return given


@dataclass(frozen=True)
class PlacementChange:
    """A seat that another agent hosts, or an edge that another process serves; `before` did so before.

    A seat with no `holder` was left.
    """

    kind: Literal["seat", "edge"]
    number: int
    holder: str | None
    before: str | None


@dataclass
class PlacementManager:
    """The placement of a run, kept up to date with the agents and edges that are alive.

    Attributes:
        population: of the run.
        registry: knows which nodes are alive.
        placement: as it was stored; empty for a new run.
        reseat_after_s: wall seconds for which the seats of a lost agent, or the edge of a lost process, wait for it.
    """

    population: Population
    registry: Registry
    placement: Placement
    reseat_after_s: float

    def seat_all(self, num_devices: int) -> list[PlacementChange]:
        """Places the first seats on the live agents, and the edges on the live processes in the order of their names.

        Raises:
            NotReady: no agent or no edge is alive.
        """
        seats = self._by_edge([s.number for s in self.population.seats if s.role != "worker"][:num_devices])
        agents = self.registry.live_agents()
        placed = place_seats(seats, agents, {})
        names = self.registry.live_edges()
        if not names:
            raise NotReady("no edge is alive")
        edges = {edge.number: names[edge.number % len(names)] for edge in self.population.edges}
        self.placement = Placement(agents=placed, edges=edges, present=tuple(agent.agent for agent in agents))
        return [PlacementChange("seat", seat, agent, None) for seat, agent in sorted(placed.items())]

    def _by_edge(self, seats: Sequence[int]) -> list[int]:
        return sorted(seats, key=lambda seat: (self.population.seats[seat].home_edge, seat))

    def refresh(self) -> list[PlacementChange]:
        """Adapts the placement between rounds.

        New agents take the lowest empty seats. Seats of lost agents and edges of lost processes move to others after
        `reseat_after_s`. The seats of agents that are stopped on purpose stay empty: fewer devices are wanted.
        """
        return self._release() + self._replace_lost_agents() + self._place_new_agents() + self._replace_lost_edges()

    def _release(self) -> list[PlacementChange]:
        """Empties the seats of agents that leave, or have left."""
        leaving = {agent for agent in set(self.placement.agents.values()) if self.registry.is_leaving(agent)}
        if not leaving:
            return []
        freed = {seat: agent for seat, agent in sorted(self.placement.agents.items()) if agent in leaving}
        self.placement = self.placement.replace(
            agents={seat: agent for seat, agent in self.placement.agents.items() if seat not in freed},
            present=tuple(agent for agent in self.placement.present if agent not in leaving),
            left={**self.placement.left, **freed},
        )
        return [PlacementChange("seat", seat, None, agent) for seat, agent in freed.items()]

    def _replace_lost_agents(self) -> list[PlacementChange]:
        """Moves the seats of agents that are lost for good."""
        lost_s = {agent: self.registry.agent_lost_s(agent) for agent in set(self.placement.agents.values())}
        gone = {agent for agent, silent_s in lost_s.items() if self._for_good(silent_s)}
        seats = [seat for seat, agent in sorted(self.placement.agents.items()) if agent in gone]
        agents = self.registry.live_agents()
        if not seats or not agents:
            return []
        kept = {seat: agent for seat, agent in self.placement.agents.items() if seat not in seats}
        self.placement = self.placement.replace(present=tuple(a for a in self.placement.present if a not in gone))
        return self._take(place_seats(self._by_edge(seats), agents, kept))

    def _replace_lost_edges(self) -> list[PlacementChange]:
        """Moves the edges of processes that are lost for good to spare processes, as far as there are any."""
        edges = self.placement.edges
        gone = [edge for edge, name in sorted(edges.items()) if self._for_good(self.registry.edge_lost_s(name))]
        spare = [name for name in self.registry.live_edges() if name not in edges.values()]
        moved = dict(zip(gone, spare, strict=False))
        self.placement = self.placement.replace(edges={**edges, **moved})
        return [PlacementChange("edge", edge, name, edges[edge]) for edge, name in moved.items()]

    def _for_good(self, lost_s: float) -> bool:
        return lost_s > 0 and lost_s >= self.reseat_after_s

    def _place_new_agents(self) -> list[PlacementChange]:
        load = Counter(self.placement.agents.values())
        empty = [
            s.number for s in self.population.seats if s.role != "worker" and s.number not in self.placement.agents
        ]
        changes: list[PlacementChange] = []
        for entry in self.registry.live_agents():
            if entry.agent in self.placement.present:
                continue
            room = max(entry.devices - load[entry.agent], 0)
            own_first = sorted(empty, key=lambda seat: (self.placement.left.get(seat) != entry.agent, seat))
            mine = sorted(own_first[:room])
            empty = [seat for seat in empty if seat not in mine]
            changes += self._take(dict.fromkeys(mine, entry.agent))
        return changes

    def _take(self, placed: dict[int, str]) -> list[PlacementChange]:
        before = self.placement.agents
        left = {seat: agent for seat, agent in self.placement.left.items() if seat not in placed}
        self.placement = self.placement.replace(agents={**before, **placed}, left=left)
        return [PlacementChange("seat", seat, agent, before.get(seat)) for seat, agent in placed.items()]

    # ---- what is alive

    def served(self) -> list[int]:
        """The edges whose process is alive, sorted."""
        return sorted(edge for edge, name in self.placement.edges.items() if self.registry.edge_is_live(name))

    def absent(self) -> dict[int, str]:
        """Taken seats whose agent is lost, with the agent."""
        return {s: a for s, a in sorted(self.placement.agents.items()) if not self.registry.agent_is_live(a)}

    def offline(self) -> dict[int, str]:
        """Taken seats whose agent is alive but was taken offline, with the agent."""
        found = {s: a for s, a in sorted(self.placement.agents.items()) if self.registry.is_offline(a)}
        return {seat: agent for seat, agent in found.items() if self.registry.agent_is_live(agent)}

    def loads(self) -> dict[str, int]:
        """Number of seats by agent."""
        return dict(Counter(self.placement.agents.values()))

    def seats_by_agent(self) -> dict[str, tuple[int, ...]]:
        """The seats of each agent that has any, sorted."""
        found: dict[str, list[int]] = {}
        for seat, agent in sorted(self.placement.agents.items()):
            found.setdefault(agent, []).append(seat)
        return {agent: tuple(seats) for agent, seats in found.items()}
