"""Who sits where: seats of a run bound to agents, homes to edges. Never decides a result, only who computes it."""

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
    """The seating of a run as it is kept: agent by seat, edge by home.

    `present` are the agents that were there at the start: room that they have to spare is no late-comer's, so that
    how many devices take part does not depend on how much room the agents happen to have.
    `left` are empty seats with the agent that left them: if it comes back, its seats are its own again.
    `profiles` are those that seats had by their agents in the last committed round.
    """

    agents: dict[int, str]
    edges: dict[int, str]
    present: tuple[str, ...] = ()
    left: dict[int, str] = Field(default_factory=dict)
    profiles: dict[int, str] = Field(default_factory=dict)


def place_seats(seats: Sequence[int], agents: Sequence[AgentEntry], taken: Mapping[int, str]) -> dict[int, str]:
    """Give seats to agents as far as there is room, evenly; with more seats than room, evenly beyond it.

    An agent gets neighbours: where seats come home by home, an edge asks few agents, with one copy of the model each.

    Args:
        seats: to be given, neighbours side by side.
        agents: in any order; among equally loaded ones (profile, id) decides.
        taken: seats given before, by seat.

    Raises:
        NotReady: there are seats to be given, but no agents.
    """
    if seats and not agents:
        raise NotReady(f"no device is there for seats {list(seats)[:20]}")
    counts = _even(len(seats), agents, Counter(taken.values()))
    names = [agent.agent for agent in sorted(agents, key=lambda agent: (agent.acts_as, agent.agent))]
    return dict(zip(seats, (name for name in names for _ in range(counts[name])), strict=True))


def _even(n_seats: int, agents: Sequence[AgentEntry], load: Counter[str]) -> Counter[str]:
    """How many seats each agent gets, given how many it has."""

    def turn(agent: AgentEntry) -> tuple[int, int, str, str]:
        n = load[agent.agent] + given[agent.agent]
        return n // agent.devices, n, agent.acts_as, agent.agent

    given: Counter[str] = Counter()
    rooms = {agent.agent: agent for agent in agents}
    queue = [turn(agent) for agent in agents]
    heapq.heapify(queue)
    for _ in range(n_seats):
        name = queue[0][-1]
        given[name] += 1
        heapq.heapreplace(queue, turn(rooms[name]))
    return given


@dataclass(frozen=True)
class PlacementChange:
    """A seat that was taken by an agent, or a home that was taken by an edge, and by whom it was held before.

    A seat without a holder was left.
    """

    what: Literal["seat", "home"]
    number: int
    holder: str | None
    before: str | None


@dataclass
class PlacementManager:
    """The seating of the active run.

    Args:
        members: the run's population.
        registry: who is alive.
        binding: as it was kept; empty for a new run.
        reseat_after_s: how long a lost agent's seats wait for it.
    """

    population: Population
    registry: Registry
    placement: Placement
    reseat_after_s: float

    def seat_all(self, num_devices: int) -> list[PlacementChange]:
        """Give the first seats to the live agents, homes to the live edges by name.

        Raises:
            NotReady: nobody is there any more.
        """
        seats = self._by_home([s.number for s in self.population.seats if s.role != "worker"][:num_devices])
        agents = self.registry.live_agents()
        given = place_seats(seats, agents, {})
        names = self.registry.live_edges()
        if not names:
            raise NotReady("no edge is there")
        edges = {home.number: names[home.number % len(names)] for home in self.population.edges}
        self.placement = Placement(agents=given, edges=edges, present=tuple(agent.agent for agent in agents))
        return [PlacementChange("seat", seat, agent, None) for seat, agent in sorted(given.items())]

    def _by_home(self, seats: Sequence[int]) -> list[int]:
        return sorted(seats, key=lambda seat: (self.population.seats[seat].home_edge, seat))

    def refresh(self) -> list[PlacementChange]:
        """Between rounds: late-comers take the lowest empty seats; what was theirs who are long gone goes to others.

        The seats of agents that are stopped on purpose are not given to those who stay: fewer devices are wanted.
        """
        return self._release() + self._reseat() + self._welcome() + self._rehome()

    def _release(self) -> list[PlacementChange]:
        """Seats of agents that leave, or have left."""
        going = {agent for agent in set(self.placement.agents.values()) if self.registry.is_going(agent)}
        if not going:
            return []
        freed = {seat: agent for seat, agent in sorted(self.placement.agents.items()) if agent in going}
        self.placement = self.placement.replace(
            agents={seat: agent for seat, agent in self.placement.agents.items() if seat not in freed},
            present=tuple(agent for agent in self.placement.present if agent not in going),
            left={**self.placement.left, **freed},
        )
        return [PlacementChange("seat", seat, None, agent) for seat, agent in freed.items()]

    def _reseat(self) -> list[PlacementChange]:
        """Seats of agents that are gone for good."""
        lost_s = {agent: self.registry.agent_lost_s(agent) for agent in set(self.placement.agents.values())}
        gone = {agent for agent, silent_s in lost_s.items() if self._for_good(silent_s)}
        seats = [seat for seat, agent in sorted(self.placement.agents.items()) if agent in gone]
        agents = self.registry.live_agents()
        if not seats or not agents:
            return []
        kept = {seat: agent for seat, agent in self.placement.agents.items() if seat not in seats}
        self.placement = self.placement.replace(present=tuple(a for a in self.placement.present if a not in gone))
        return self._take(place_seats(self._by_home(seats), agents, kept))

    def _rehome(self) -> list[PlacementChange]:
        """Homes of edges that are gone for good, as far as there are edges without a home."""
        edges = self.placement.edges
        gone = [home for home, edge in sorted(edges.items()) if self._for_good(self.registry.edge_lost_s(edge))]
        spare = [name for name in self.registry.live_edges() if name not in edges.values()]
        moved = dict(zip(gone, spare, strict=False))
        self.placement = self.placement.replace(edges={**edges, **moved})
        return [PlacementChange("home", home, edge, edges[home]) for home, edge in moved.items()]

    def _for_good(self, lost_s: float) -> bool:
        return lost_s > 0 and lost_s >= self.reseat_after_s

    def _welcome(self) -> list[PlacementChange]:
        load = Counter(self.placement.agents.values())
        empty = [
            s.number for s in self.population.seats if s.role != "worker" and s.number not in self.placement.agents
        ]
        moves: list[PlacementChange] = []
        for entry in self.registry.live_agents():
            if entry.agent in self.placement.present:
                continue
            room = max(entry.devices - load[entry.agent], 0)
            own_first = sorted(empty, key=lambda seat: (self.placement.left.get(seat) != entry.agent, seat))
            mine = sorted(own_first[:room])
            empty = [seat for seat in empty if seat not in mine]
            moves += self._take(dict.fromkeys(mine, entry.agent))
        return moves

    def _take(self, given: dict[int, str]) -> list[PlacementChange]:
        moves = [PlacementChange("seat", seat, agent, self.placement.agents.get(seat)) for seat, agent in given.items()]
        left = {seat: agent for seat, agent in self.placement.left.items() if seat not in given}
        self.placement = self.placement.replace(agents={**self.placement.agents, **given}, left=left)
        return moves

    # ---- who is there

    def served(self) -> list[int]:
        """The homes whose edge is alive, sorted."""
        return sorted(home for home, edge in self.placement.edges.items() if self.registry.edge_is_live(edge))

    def absent(self) -> dict[int, str]:
        """Taken seats whose agent is not alive, with the agent."""
        return {s: a for s, a in sorted(self.placement.agents.items()) if not self.registry.agent_is_live(a)}

    def offline(self) -> dict[int, str]:
        """Taken seats whose agent is alive and was taken offline, with the agent."""
        found = {s: a for s, a in sorted(self.placement.agents.items()) if self.registry.is_offline(a)}
        return {seat: agent for seat, agent in found.items() if self.registry.agent_is_live(agent)}

    def loads(self) -> dict[str, int]:
        """Seats by agent."""
        return dict(Counter(self.placement.agents.values()))

    def seats_by_agent(self) -> dict[str, tuple[int, ...]]:
        """The seats of each agent that has some, sorted."""
        found: dict[str, list[int]] = {}
        for seat, agent in sorted(self.placement.agents.items()):
            found.setdefault(agent, []).append(seat)
        return {agent: tuple(seats) for agent, seats in found.items()}
