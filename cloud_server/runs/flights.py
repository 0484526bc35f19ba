"""The orders of a run that are in flight at its edges, and their ends in the order of simulated time.

Wall time decides nothing. An order's end is taken once no other order that still lacks an answer could end before it:
no answer arrives before its order and the smallest body have passed the edge's link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from cloud_server.runs.edge_client import EdgeReply
from cloud_server.runs.loose_checkpoint import Flight
from cloud_server.runs.round import CloudRound
from cloud_server.runs.round_record import all_off
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.link_bytes import size_on_links
from shared.federation.messages import Failure
from shared.simulation.cost_model import LinkUse, link_cost
from shared.wire import codec

SMALLEST_ANSWER = 1
"""Bytes of the smallest answer: that of an edge whose devices are all off holds no tensors."""


def context_of(experiment: Experiment, flight: Flight) -> Context:
    """The context of a flight's order at the cloud; its phase is that of the next version."""
    phase = experiment.phase_of(flight.version + 1).name
    return experiment.ctx(phase=phase, round_no=flight.number, n_clients=flight.n_clients)


@dataclass
class FlightOrder(CloudRound):
    """The part of a round that concerns one edge: its order is made, sent, and its answer checked.

    Attributes:
        flight: the order's.
        earliest_s: simulated seconds of the run before which no answer can arrive.
        sent: set once `earliest_s` is known.
    """

    flight: Flight = field(kw_only=True)
    sent: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ctx = context_of(self.experiment, self.flight)
        self.earliest_s = self.flight.clock_s

    async def outcome(self) -> EdgeReply | Failure:
        """The edge's answer, or what went wrong."""
        edge = self.flight.edge
        try:
            if edge in self.round_map.edges:
                return await self._order_edge(edge)
            return Failure(edge=edge, reason="lost", detail=f"edge {self.round_map.away.get(edge, '')} is lost")
        finally:
            self.sent.set()

    async def _deliver(self, edge: int, name: str, body: codec.Body) -> EdgeReply:
        down_bytes = size_on_links(self.experiment.spec, body.parts[0], body.n_bytes)
        self.earliest_s = self._after(LinkUse(down_bytes=down_bytes, up_bytes=SMALLEST_ANSWER), 0.0)
        self.sent.set()
        return await super()._deliver(edge, name, body)

    def _after(self, use: LinkUse, at_edge_s: float) -> float:
        """Simulated seconds of the run after both transfers and the time at the edge between them."""
        edge = self.flight.edge
        cost = link_cost(self.experiment.population.edges[edge].link, use, self.ctx.at(edge=edge).seed)
        return self.flight.clock_s + (cost.simulated_s + at_edge_s)

    def ends_s(self, outcome: EdgeReply | Failure) -> float:
        """Simulated seconds of the run at which this outcome counts.

        A failure counts at the first instant at which there could have been an answer, whenever it was noticed. An edge
        whose devices were all off answers when the first of them is on again.
        """
        if isinstance(outcome, Failure):
            return self.earliest_s
        answer, use = outcome.answer, LinkUse(down_bytes=outcome.down_bytes, up_bytes=outcome.up_bytes)
        on_s = answer.next_on_s if all_off(answer.lines) else None
        return max(self._after(use, answer.simulated_s), on_s or 0.0)


class Landing(NamedTuple):
    """The end of a flight at an instant of the run, in simulated seconds."""

    at_s: float
    edge: int
    flight: Flight
    outcome: EdgeReply | Failure


@dataclass
class _InAir:
    order: FlightOrder
    task: asyncio.Task[EdgeReply | Failure]

    @property
    def first(self) -> tuple[float, int]:
        """The first instant at which it can end, and its edge, which orders equal instants."""
        return self.order.earliest_s, self.order.flight.edge

    @cached_property
    def landing(self) -> Landing:
        """Its end, once there is an answer."""
        outcome, flight = self.task.result(), self.order.flight
        return Landing(self.order.ends_s(outcome), flight.edge, flight, outcome)


@dataclass
class Flights:
    """The orders in flight, one for each edge at most."""

    _in_air: dict[int, _InAir] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Flight, ...]:
        """All flights, by edge."""
        return tuple(self._in_air[edge].order.flight for edge in sorted(self._in_air))

    def __contains__(self, flight: Flight) -> bool:
        found = self._in_air.get(flight.edge)
        return found is not None and found.order.flight == flight

    async def send(self, order: FlightOrder) -> None:
        """Send an order; returns when it is known how long it flies at least."""
        self._in_air[order.flight.edge] = _InAir(order, asyncio.create_task(order.outcome()))
        await order.sent.wait()

    async def next(self, until_s: float) -> Landing | None:
        """The next flight to end, which is none any more then; None if none ends by this instant of the run.

        Flights that end at the same instant come in the order of their edges. Each wait ends, as that of `EdgeClient`
        for each answer does.
        """
        while True:
            ended = (each.landing for each in self._in_air.values() if each.task.done())
            first = min(ended, default=None, key=lambda landing: landing[:2])
            if first is not None and first.at_s > until_s:
                first = None
            waits = [each for each in self._in_air.values() if not each.task.done()]
            before = [
                each.task for each in waits if (each.first < first[:2] if first else each.order.earliest_s <= until_s)
            ]
            if not before:
                return self._taken(first)
            await asyncio.wait(before, return_when=asyncio.FIRST_COMPLETED)

    def _taken(self, landing: Landing | None) -> Landing | None:
        if landing is not None:
            del self._in_air[landing.edge]
        return landing

    async def keep_only(self, flights: Iterable[Flight]) -> None:
        """End all flights but these; edges stop their work some seconds later."""
        kept = {flight.edge for flight in flights if flight in self}
        ended = [self._in_air.pop(edge).task for edge in self._in_air.keys() - kept]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
