"""Visits in flight at an edge whose devices are asynchronous: conservative discrete events on the simulated clock.

A visit is in flight from its dispatch until its answer arrives, on the simulated clock; its order goes to an agent at
once. The next event is the earliest arrival. While a visit has no answer yet, the edge knows the earliest instant at
which one can arrive, and waits for it only if that instant is not after the earliest arrival known. So neither the
order nor the speed in which agents answer decides anything.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from edge_server.rounds.exchange import Exchange
from edge_server.rounds.wave import Wave, WaveDecision
from edge_server.rounds.wave_timing import WaveTiming
from shared.core.bounds import Amount, Count
from shared.core.errors import Cancelled
from shared.core.records import Record
from shared.federation.messages import VisitOrder
from shared.service.client import POLL_S
from shared.storage.states import Version

M = TypeVar("M")


class StoredDispatch(Record, Generic[M]):
    """The visits in flight of one dispatch, as an edge stores them; after a restart they are ordered again.

    Attributes:
        version: of the model that they received.
        at_s: instant of their dispatch, on the run's simulated clock.
        order: their order, as if they were with one agent.
    """

    version: Count
    at_s: Amount
    order: VisitOrder[M]


class StoredVisits(Record, Generic[M]):
    """The visits in flight of an edge after a round, and the number of models that it has had."""

    version: Count = 0
    dispatches: tuple[StoredDispatch[M], ...] = ()


@dataclass(frozen=True)
class Flight:
    """One visit in flight.

    Attributes:
        seat: that is visited.
        version: of the model that it received.
        timing: of its dispatch, shared with the other visits of that dispatch.
        exchange: with the agents of that dispatch.
        earliest_s: the earliest instant at which its answer can arrive; if it has none, that at which it ends.
        answer: ends when its agent has answered; None if no answer is awaited.
    """

    seat: int
    version: int
    timing: WaveTiming
    exchange: Exchange
    earliest_s: float
    answer: asyncio.Task[None] | None

    @property
    def answered(self) -> bool:
        """Whether its arrival is known."""
        return self.answer is None or self.answer.done()

    @property
    def base_version(self) -> Version | None:
        """The version of its device's state with which it began."""
        dispatch = self.timing.dispatch
        found = (item.base_version for item in (*dispatch.requests, *dispatch.dropping) if item.seat == self.seat)
        return next(found, None)

    @property
    def unordered(self) -> bool:
        """Whether it was never ordered: left out, or its agent cannot be reached."""
        dispatch = self.timing.dispatch
        return self.seat in dispatch.unrequested and self.seat not in dispatch.faults.dropped

    @cached_property
    def arrives_s(self) -> float:
        """The instant at which its answer arrives; that of a failure is the earliest possible one."""
        found = self.timing.replies.outcomes.get(self.seat)
        if found is None or found.failure is not None or self.seat in self.timing.replies.failed():
            return self.earliest_s
        return max(self.timing.arrives_s(self.seat), self.earliest_s)

    @property
    def wave(self) -> Wave:
        """Its dispatch and replies; nothing breaks it off."""
        return Wave(self.timing.dispatch, self.timing.replies, WaveDecision(answered_s=math.inf))


@dataclass
class Flights:
    """The visits in flight of one edge of a run, by seat.

    Attributes:
        version: number of models that the edge has had: those received, and those formed between two of them.
        stop: ends the requests to agents.
    """

    version: int = 0
    by_seat: dict[int, Flight] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def add(self, flights: Iterable[Flight]) -> None:
        """Adds visits that have been dispatched."""
        self.by_seat |= {flight.seat: flight for flight in flights}

    @property
    def unordered(self) -> list[Flight]:
        """Visits that were never ordered, by seat; they end at once."""
        return [flight for _, flight in sorted(self.by_seat.items()) if flight.unordered]

    async def next(self, wake_s: float, cancelled: threading.Event) -> tuple[float, list[Flight]]:
        """Waits for the next event.

        Args:
            wake_s: an instant at which something else happens.
            cancelled: set when nobody waits for the round any more.

        Returns:
            The instant of the event, infinite if there is none, and the visits that arrive at it, by seat.

        Raises:
            Cancelled: nobody waits for the round any more.
        """
        while True:
            known = [flight for flight in self.by_seat.values() if flight.answered]
            first_s = min([wake_s, *(flight.arrives_s for flight in known)])
            awaited = [flight for flight in self.by_seat.values() if not flight.answered]
            if not any(flight.earliest_s <= first_s for flight in awaited):
                arrived = [flight for flight in known if flight.arrives_s == first_s]
                return first_s, sorted(arrived, key=lambda flight: flight.seat)
            if cancelled.is_set():
                raise Cancelled("round cancelled: the caller disconnected")
            answers = {flight.answer for flight in awaited if flight.answer is not None}
            await asyncio.wait(answers, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)

    def remove(self, flight: Flight) -> None:
        """Removes a visit that has arrived.

        Raises:
            Exception: taking its answer failed in a way that no visit can be blamed for.
        """
        del self.by_seat[flight.seat]
        if flight.answer is not None:
            flight.answer.result()

    def drop(self, seats: Iterable[int]) -> None:
        """Ends the visits of some seats without a trace."""
        for flight in [self.by_seat.pop(seat) for seat in seats]:
            if flight.answer is not None:
                flight.answer.cancel()

    def stored(self, message: type[Any]) -> StoredVisits[Any]:
        """What is in flight, as a record; `message` is the type of the messages."""
        groups: dict[int, list[Flight]] = {}
        for _, flight in sorted(self.by_seat.items()):
            groups.setdefault(id(flight.timing.dispatch), []).append(flight)
        dispatches = sorted(
            map(_stored_dispatch, groups.values()), key=lambda item: (item.at_s, item.order.visits[0].seat)
        )
        return StoredVisits[message](version=self.version, dispatches=tuple(dispatches))  # type: ignore[valid-type]

    def close(self) -> None:
        """Ends all requests."""
        self.stop.set()
        self.drop(list(self.by_seat))


def _stored_dispatch(flights: list[Flight]) -> StoredDispatch[Any]:
    """The record of visits of one dispatch."""
    timing, seats = flights[0].timing, {flight.seat for flight in flights}
    dispatch = timing.dispatch
    requests = sorted((*dispatch.requests, *dispatch.dropping), key=lambda item: item.seat)
    order = timing.agents.visit_order(dispatch.wave_id, [item for item in requests if item.seat in seats], hold=False)
    return StoredDispatch[Any](version=flights[0].version, at_s=dispatch.at_s, order=order)
