"""The placement of a run: which agent hosts each seat, which process serves each edge. It never affects a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from pydantic import Field

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.nodes.registry import Registry
from cloud_server.runs.seat_shares import seat_shares
from shared.core.errors import NotReady
from shared.core.number_sets import EMPTY, Numbers, NumberSet, SetIndex
from shared.core.records import Record
from shared.federation.population import Population


class Placement(Record):
    """The placement of a run as it is stored.

    Attributes:
        agents: by agent that has any, the seats that it hosts.
        edges: by edge of the run, the name of the process that serves it.
        present: agents that were registered at the start. They get no more seats as late-comers, so that the number
            of devices does not depend on the capacity that agents happen to have.
        left: by agent, the empty seats that it left and gets again if it comes back.
        profiles: by seat, the profile of its agent in the last committed round.
    """

    agents: dict[str, NumberSet]
    edges: dict[int, str]
    present: tuple[str, ...] = ()
    left: dict[str, NumberSet] = Field(default_factory=dict)
    profiles: dict[int, str] = Field(default_factory=dict)

    @cached_property
    def _index(self) -> SetIndex:
        return SetIndex(list(self.agents.values()))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.agents)

    @property
    def taken(self) -> NumberSet:
        """All seats that an agent hosts."""
        return self._index.all

    def agent_of(self, seat: int) -> str | None:
        """The agent that hosts a seat, if one does."""
        found = self._index.find(seat)
        return None if found is None else self._names[found]


def place_seats(seats: Numbers, agents: Sequence[AgentEntry], loads: Mapping[str, int]) -> dict[str, NumberSet]:
    """Distributes seats over agents in proportion to their capacity, also beyond it.

    An agent gets consecutive seats: sorted by edge, an edge then has few agents, each with one copy of the model.

    Args:
        seats: the seats to place, those of an edge side by side.
        agents: in any order; (profile, id) decides among equally loaded ones.
        loads: by agent, the number of seats placed before.

    Returns:
        By agent, its seats.

    Raises:
        NotReady: there are seats but no agents.
    """
    if not len(seats):
        return {}
    if not agents:
        raise NotReady(f"no agent is alive for devices {seats[:20].tolist()}")
    order = sorted(agents, key=lambda agent: (agent.effective_profile, agent.agent))
    counts = seat_shares(len(seats), [agent.devices for agent in order], [loads.get(a.agent, 0) for a in order])
    parts = np.split(seats, np.cumsum(counts)[:-1])
    return {agent.agent: NumberSet(part) for agent, part in zip(order, parts, strict=True) if len(part)}


@dataclass(frozen=True)
class SeatsMoved:
    """Seats that another agent hosts now, None if none does; `before` did so before."""

    seats: NumberSet
    agent: str | None
    before: str | None


@dataclass(frozen=True)
class EdgeMoved:
    """An edge that another process serves now; `before` did so before."""

    edge: int
    process: str
    before: str


PlacementChange = SeatsMoved | EdgeMoved
Visitors = Mapping[int, Mapping[str, NumberSet]]
"""By edge, and by agent, the hosted seats that visit the edge."""


@dataclass
class PlacementManager:
    """The placement of a run, kept up to date with the agents and edges that are alive.

    Attributes:
        population: of the run.
        registry: knows which nodes are alive.
        placement: as it was stored; empty for a new run.
        agents: returns the live agents that may host seats of the run, sorted by (profile, id).
        reseat_after_s: wall seconds for which the seats of a lost agent, or the edge of a lost process, wait for it.
    """

    population: Population
    registry: Registry
    placement: Placement
    reseat_after_s: float
    agents: Callable[[], list[AgentEntry]] = list
    _visitors: tuple[Placement, frozenset[int], Visitors] | None = field(default=None, repr=False)
    _training: tuple[Placement, int] | None = field(default=None, repr=False)

    def seat_all(self, num_devices: int) -> list[PlacementChange]:
        """Places the first seats on the live agents, and the edges on the live processes in the order of their names.

        Raises:
            NotReady: no agent or no edge is alive.
        """
        agents = self.agents()
        placed = place_seats(self._by_edge(np.arange(min(num_devices, self.population.n_devices))), agents, {})
        names = self.registry.open_edges()
        if not names:
            raise NotReady("no edge is alive")
        edges = {edge.number: names[edge.number % len(names)] for edge in self.population.edges}
        self.placement = Placement(agents=placed, edges=edges, present=tuple(agent.agent for agent in agents))
        return [SeatsMoved(seats, agent, None) for agent, seats in sorted(placed.items())]

    def _by_edge(self, seats: Numbers) -> Numbers:
        ordered: Numbers = seats[np.argsort(self.population.home_edges[seats], kind="stable")]
        return ordered

    def refresh(self) -> list[PlacementChange]:
        """Adapts the placement between rounds.

        New agents take the lowest empty seats. Seats of lost agents and edges of lost processes move to others after
        `reseat_after_s`. The seats of agents that are stopped on purpose stay empty: fewer devices are wanted.
        """
        return self._release() + self._replace_lost_agents() + self._place_new_agents() + self._replace_lost_edges()

    def _release(self) -> list[PlacementChange]:
        """Empties the seats of agents that leave, or have left."""
        before = self.placement
        freed = {agent: seats for agent, seats in sorted(before.agents.items()) if self.registry.is_leaving(agent)}
        if not freed:
            return []
        self.placement = before.replace(
            agents={agent: seats for agent, seats in before.agents.items() if agent not in freed},
            present=tuple(agent for agent in before.present if agent not in freed),
            left=before.left | {agent: seats | before.left.get(agent, EMPTY) for agent, seats in freed.items()},
        )
        return [SeatsMoved(seats, None, agent) for agent, seats in freed.items()]

    def _replace_lost_agents(self) -> list[PlacementChange]:
        """Moves the seats of agents that are lost for good."""
        before = self.placement
        gone = [agent for agent in sorted(before.agents) if self._for_good(self.registry.agent_lost_s(agent))]
        agents = self.agents()
        if not gone or not agents:
            return []
        kept = {agent: seats for agent, seats in before.agents.items() if agent not in gone}
        seats = self._by_edge(SetIndex([before.agents[agent] for agent in gone]).all.array)
        placed = place_seats(seats, agents, {agent: len(own) for agent, own in kept.items()})
        self.placement = before.replace(agents=kept, present=tuple(a for a in before.present if a not in gone))
        self._take(placed)
        moves = [(own & before.agents[old], new, old) for new, own in sorted(placed.items()) for old in gone]
        return [SeatsMoved(*move) for move in moves if len(move[0])]

    def _replace_lost_edges(self) -> list[PlacementChange]:
        """Moves the edges of processes that are lost for good to spare processes, as far as there are any."""
        edges = self.placement.edges
        gone = [edge for edge, name in sorted(edges.items()) if self._for_good(self.registry.edge_lost_s(name))]
        spare = [name for name in self.registry.open_edges() if name not in edges.values()] if gone else []
        moved = dict(zip(gone, spare, strict=False))
        if moved:
            self.placement = self.placement.replace(edges={**edges, **moved})
        return [EdgeMoved(edge, name, edges[edge]) for edge, name in moved.items()]

    def _for_good(self, lost_s: float) -> bool:
        return lost_s > 0 and lost_s >= self.reseat_after_s

    def _place_new_agents(self) -> list[PlacementChange]:
        changes: list[PlacementChange] = []
        new = [entry for entry in self.agents() if entry.agent not in self.placement.present]
        for entry in new:
            room = max(entry.devices - len(self.placement.agents.get(entry.agent, ())), 0)
            if not room or len(self.placement.taken) == self.population.n_devices:
                continue
            empty = NumberSet(np.arange(self.population.n_devices)) - self.placement.taken
            own = self.placement.left.get(entry.agent, EMPTY) & empty
            mine = NumberSet(np.concatenate([own.array, (empty - own).array])[:room])
            if len(mine):
                self._take({entry.agent: mine})
                changes.append(SeatsMoved(mine, entry.agent, None))
        return changes

    def _take(self, placed: Mapping[str, NumberSet]) -> None:
        before, taken = self.placement, SetIndex(list(placed.values())).all
        left = {agent: seats - taken for agent, seats in before.left.items()}
        more = {agent: seats | before.agents.get(agent, EMPTY) for agent, seats in placed.items()}
        self.placement = before.replace(
            agents={**before.agents, **more}, left={agent: seats for agent, seats in left.items() if len(seats)}
        )

    # ---- what is alive

    def served(self) -> list[int]:
        """The edges whose process is alive, sorted."""
        return sorted(edge for edge, name in self.placement.edges.items() if self.registry.edge_is_live(name))

    def absent(self) -> NumberSet:
        """Hosted seats whose agent is lost."""
        return self._seats_of([a for a in self.placement.agents if not self.registry.agent_is_live(a)])

    def offline(self) -> NumberSet:
        """Hosted seats whose agent is alive but was taken offline."""
        offline = [agent for agent in self.placement.agents if self.registry.is_offline(agent)]
        return self._seats_of([agent for agent in offline if self.registry.agent_is_live(agent)])

    def _seats_of(self, agents: Sequence[str]) -> NumberSet:
        return SetIndex([self.placement.agents[agent] for agent in agents]).all

    def loads(self) -> dict[str, int]:
        """Number of seats by agent."""
        return {agent: len(seats) for agent, seats in self.placement.agents.items()}

    @property
    def n_training(self) -> int:
        """Number of the hosted seats that train; as long as nothing changes, it is computed once."""
        if self._training is None or self._training[0] is not self.placement:
            taken = self.placement.taken
            self._training = self.placement, len(taken) - len(taken & self.population.held_out)
        return self._training[1]

    def visitors(self, served: frozenset[int], *, elsewhere: bool) -> Visitors:
        """The hosted seats that visit each of these edges; as long as nothing changes, it is computed once.

        Args:
            served: the edges that are served.
            elsewhere: whether the seats of other edges visit the nearest that is served.
        """
        known = self._visitors
        if known is None or known[0] is not self.placement or known[1] != served:
            found: dict[int, dict[str, NumberSet]] = {edge: {} for edge in served}
            for agent, seats in sorted(self.placement.agents.items()):
                homes = self.population.home_edges[seats.array]
                away = ~np.isin(homes, sorted(served))
                if elsewhere and served and away.any():
                    homes[away] = self.population.latencies.nearest(seats.array[away], sorted(served))
                for edge in served.intersection(np.unique(homes).tolist()):
                    found[edge][agent] = seats.where(homes == edge)
            known = self._visitors = (self.placement, served, found)
        return known[2]
