"""One round of a cloud that does not wait for all edges (`sync.edges`): it ends with a version of the global model.

The simulated instants of orders and answers decide which answers are in it, never the wall clock; see `flights`. Before
an edge gets a further order while a version is being made, what has been counted is kept: edges and devices keep their
states before and after their last order only, so a repetition must not begin with an older one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cloud_server.runs.checkpoint import Checkpoint
from cloud_server.runs.edge_client import EdgeClient, EdgeReply
from cloud_server.runs.flights import FlightOrder, Flights, Landing
from cloud_server.runs.loose_checkpoint import Flight, Landed, LooseCheckpoint, packed, unpacked
from cloud_server.runs.loose_record import LooseRecorder, LooseReplies
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.quorum import QuorumMissed
from cloud_server.runs.round import RoundResult, add_answer, aggregated, model_and_figures, n_clients
from cloud_server.runs.round_map import RoundMap, flight_map
from shared.core.errors import StrataError
from shared.core.number_sets import NumberSet, SetIndex
from shared.core.tensors import digest
from shared.federation.aggregation import Accumulator
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure
from shared.federation.update_weights import n_buffered
from shared.run_records.rounds import RoundDetail
from shared.runtime.compute_thread import ComputeThread
from shared.runtime.logs import log_context_of
from shared.storage.states import Version


@dataclass
class LooseRound:
    """One attempt at a round, from the last checkpoint to the next version of the global model.

    Attributes:
        checkpoint: the last one; in it the round may have begun already.
        round_map: which seats visit which edge, determined once, when the attempt begins.
        flights: the orders in flight, which outlast the round.
        write: writes the file of a checkpoint; returns its digest.
        keep: stores a checkpoint in the middle of a round.
        attempt: counts from 1.
    """

    run_id: str
    experiment: Experiment
    checkpoint: LooseCheckpoint[Any]
    placement: PlacementManager
    round_map: RoundMap
    edges: EdgeClient
    thread: ComputeThread
    flights: Flights
    write: Callable[[Checkpoint[Any]], Awaitable[str]]
    keep: Callable[[LooseCheckpoint[Any]], Awaitable[None]]
    attempt: int = 1

    def __post_init__(self) -> None:
        before = self.checkpoint
        self.round_no, self.sync = before.round_no + 1, self.experiment.spec.sync.edges
        self.now_s, self.landed = before.clock_s, unpacked(before.landed)
        self.n_kept = len(self.landed)
        self.bases, self.edge_bases, self.retired = dict(before.bases), dict(before.edge_bases), dict(before.retired)
        self.ctx = self.experiment.ctx(
            phase=self.experiment.phase_of(self.round_no).name, round_no=self.round_no, n_clients=self._n_clients()
        )
        self.total = self._accumulator()

    def _n_clients(self) -> int:
        return n_clients(self.experiment, self.placement, self.retired)

    def _accumulator(self) -> Accumulator:
        """A sum that continues the one of the last checkpoint, whose tensors it does not write."""
        total = Accumulator(self.experiment.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes)
        if self.checkpoint.total is not None:
            total.merge(self.checkpoint.total, checked=True)
        return total

    @log_context_of(lambda self: {"round": self.round_no})
    async def run(self) -> RoundResult:
        """Runs the round and writes the state after it; its end is not committed yet.

        Raises:
            QuorumMissed: no edge answered, and none is left to be asked.
        """
        began = time.monotonic()
        await self.flights.keep_only(self.checkpoint.flights)
        for flight in self.checkpoint.flights:  # after a restart, or where an attempt has failed
            if flight not in self.flights:
                await self._send(flight)
        await (self._collect_buffer() if self.sync.asynchronous else self._collect_until_enough())
        if not self._n_answers():
            why = "; ".join(landed.failure.detail for landed in self.landed if landed.failure) or "no edge is alive"
            raise QuorumMissed(f"round {self.round_no}: no edge answered: {why}")
        state = await self.thread.run(aggregated, self.experiment, self.ctx, self.checkpoint.state, self.total)
        del self.total  # twice as large as the model
        model, figures = await self.thread.run(model_and_figures, self.experiment, self.ctx, state)
        checkpoint = self._checkpoint(self.round_no, state)
        model_sha256, file = await asyncio.gather(asyncio.to_thread(digest, model), self.write(checkpoint))
        detail = self._detail(model_sha256 if model else "", figures, time.monotonic() - began)
        return RoundResult(checkpoint, file, detail)

    def _n_answers(self) -> int:
        return sum(landed.answer is not None for landed in self.landed)

    # ---- when a round ends

    async def _collect_buffer(self) -> None:
        """Counts answers until the buffer is full; who has answered gets an order once all of its instant are counted.

        If no order can be in flight any more, the answers that came are all there will be.
        """
        wanted = n_buffered(self.sync, len(self.experiment.population.edges))
        while self._n_answers() < wanted:
            landing = await self.flights.next(self.now_s)
            if landing is None:
                await self._order_idle_edges()
                landing = await self.flights.next(math.inf)
            if landing is None:
                return
            await self._count(landing)

    async def _collect_until_enough(self) -> None:
        """Counts answers until enough to this round's orders have come, or until its deadline and at least one."""
        await self._order_idle_edges()
        end_s = self.now_s + (self.sync.deadline_s or math.inf)
        while landing := await self.flights.next(end_s if self._n_answers() else math.inf):
            await self._count(landing)
            end_s = self.now_s if self._enough() else max(end_s, self.now_s)
        self.now_s = end_s if self.flights.all else self.now_s

    def _enough(self) -> bool:
        """Whether an answer has come, and the wanted number of answers to this round's orders or all there will be."""
        version = self.checkpoint.round_no
        n_fresh = sum(landed.answer is not None and landed.flight.version == version for landed in self.landed)
        waits = any(flight.version == version for flight in self.flights.all)
        return self._n_answers() > 0 and (not waits or n_fresh >= (self.sync.wanted or math.inf))

    # ---- orders and answers

    async def _order_idle_edges(self) -> None:
        """Sends an order to each edge that is served and has none in flight; those that failed wait for a round.

        A seat that visits an edge in flight, while its own was lost, visits no other until that has answered.
        """
        waits = {flight.edge for flight in self.flights.all}
        waits |= {landed.flight.edge for landed in self.landed if landed.failure is not None}
        busy, retired = SetIndex([flight.seats for flight in self.flights.all]).all, NumberSet(self.retired)
        found = {edge: self.round_map.seats_at(edge) - busy for edge in sorted(self.round_map.edges.keys() - waits)}
        idle = {edge: seats for edge, seats in found.items() if len(seats - retired)}
        if idle and len(self.landed) > self.n_kept:
            await self._keep()
        for edge, seats in idle.items():
            await self._send(self._next_flight(edge, seats))

    def _next_flight(self, edge: int, seats: NumberSet) -> Flight:
        version = self.checkpoint.round_no
        of_seats = max((base.round_no for seat, base in self.bases.items() if seat in seats), default=0)
        newest = max(version, self.edge_bases.get(edge, Version(0)).round_no, of_seats)
        return Flight(
            edge=edge,
            number=newest + 1,
            version=version,
            clock_s=self.now_s,
            n_clients=self._n_clients(),
            seats=seats,
        )

    async def _send(self, flight: Flight) -> None:
        sent_from = Checkpoint[Any].model_construct(
            round_no=flight.version,
            state=self.checkpoint.state_of(flight.version),
            bases=self.bases,
            edge_bases=self.edge_bases,
            retired=self.retired,
        )
        order = FlightOrder(
            self.run_id,
            flight.number,
            "train",
            self.experiment,
            sent_from,
            self.placement,
            flight_map(self.round_map, self.experiment, self.placement, flight.edge, flight.seats),
            self.edges,
            self.thread,
            self.write,
            clock_s=flight.clock_s,
            flight=flight,
        )
        await self.flights.send(order)

    async def _count(self, landing: Landing) -> None:
        """Counts a flight that has ended; an answer that cannot be added becomes a failure of its edge."""
        flight, outcome = landing.flight, landing.outcome
        self.now_s = max(self.now_s, landing.at_s)
        staleness = self.checkpoint.round_no - flight.version
        if isinstance(outcome, EdgeReply):
            try:
                await self.thread.run(add_answer, self.total, outcome.answer, self.sync.staleness.steps(staleness))
            except StrataError as error:
                detail = f"{self.round_map.edges.get(flight.edge, '')}: {error.detail}"
                outcome = Failure(edge=flight.edge, reason=error.code, detail=detail)
            else:
                self.bases |= outcome.answer.bases
                self.retired |= outcome.answer.retired
                self.edge_bases[flight.edge] = outcome.answer.base or Version(flight.number)
        self.landed.append(Landed.of(flight, landing.at_s, staleness, outcome))

    # ---- what is kept

    async def _keep(self) -> None:
        """Stores what has been counted of a version; the sum goes on with tensors of its own."""
        found = self._checkpoint(self.checkpoint.round_no, self.checkpoint.state)
        self.checkpoint = found.model_copy(update={"landed": packed(self.landed), "total": self.total.result()})
        self.total, self.n_kept = self._accumulator(), len(self.landed)
        await self.keep(self.checkpoint)

    def _checkpoint(self, round_no: int, state: Any) -> LooseCheckpoint[Any]:
        """The state now: after the version `round_no`, whose answers have all counted."""
        flights, before = self.flights.all, self.checkpoint
        needed = {flight.version for flight in flights} - {round_no}
        return LooseCheckpoint[Any](
            round_no=round_no,
            state=state,
            bases=self.bases,
            edge_bases=self.edge_bases,
            retired=self.retired,
            begin_s=before.begin_s if round_no == before.round_no else self.now_s,
            clock_s=self.now_s,
            flights=flights,
            states={version: before.state_of(version) for version in sorted(needed)},
        )

    def _detail(self, model_sha256: str, figures: dict[str, Any], wall_s: float) -> RoundDetail:
        began_s, retired = self.checkpoint.begin_s, self.checkpoint.retired
        recorder = LooseRecorder(
            self.experiment,
            self.round_map,
            self.placement.placement,
            retired,
            self.ctx,
            began_s,
            landed=self.landed,
            lasted_s=self.now_s - began_s,
        )
        return recorder.detail(
            LooseReplies.of(self.landed, began_s),
            kind="train",
            model_sha256=model_sha256,
            wall_s=wall_s,
            attempts=self.attempt,
            figures=figures,
        )
