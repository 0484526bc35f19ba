"""One round at an edge whose devices are asynchronous.

begin -> (dispatch idle devices -> next arrival)* -> version -> ... -> finish

Each arrival counts at its simulated instant, with a weight by its staleness; `buffer` updates make a version of the
edge's model, and a round of the edge is `edge_rounds` versions. Visits in flight at its end go on from the model that
they received, and count in later rounds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge_server.rounds.agent_client import AgentClient
from edge_server.rounds.exchange import Exchange
from edge_server.rounds.flights import Flight, Flights, StoredDispatch, StoredVisits
from edge_server.rounds.round import EdgeRound
from edge_server.rounds.round_log import visit_record
from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.visit_requests import apply_phase_kind, reachable, simulated_failures
from edge_server.rounds.wave import AgentReplies, Deadline, Dispatch, VisitRequest
from edge_server.rounds.wave_timing import WaveTiming
from shared.federation.aggregation import Accumulator, PartialSum
from shared.federation.context import Context, EdgeView
from shared.federation.hooks import Begin
from shared.federation.messages import Failure, Outcome, Task, Visit
from shared.federation.update_weights import mean_staleness_weight, n_buffered
from shared.run_records.visits import SIMULATED_LOSSES
from shared.runtime.logs import log_event


@dataclass
class AsynchronousRound(EdgeRound):
    """A round of an edge that does not wait for all its devices.

    Attributes:
        flights: visits in flight.
        stored_visits: those that are still to be ordered again, after a restart.
        resting: seats that are not visited again before the next version, as their visit failed.
        ended: by seat, task and outcome of the visits that have arrived in the present version.
        n_dispatches, n_arrivals: so far in the present version.
    """

    flights: Flights = field(default_factory=Flights)
    stored_visits: StoredVisits[Any] | None = None
    resting: set[int] = field(default_factory=set)
    ended: dict[int, tuple[Task, Outcome[Any]]] = field(default_factory=dict)
    n_dispatches: int = 0
    n_arrivals: int = 0

    def abandon(self) -> None:
        self.flights.close()

    async def _train(self, begun: Begin[Any]) -> PartialSum | None:
        """Makes the versions of a round; returns the sum of the last one."""
        self.flights.drop([seat for seat, flight in self.flights.by_seat.items() if self._gone(seat, flight)])
        await self._order_again()
        partial_sum = None
        for edge_round in range(begun.edge_rounds):
            partial_sum = await self._make_version(self.ctx.at(edge_round=edge_round), forward_sum=begun.forward_sum)
        return partial_sum

    async def _make_version(self, ctx: Context, *, forward_sum: bool) -> PartialSum:
        """Visits devices until enough updates have arrived; returns their exact sum."""
        self.flights.version += 1
        self.resting, self.ended, self.n_dispatches, self.n_arrivals = set(), {}, 0, 0
        log_event("edge_round.begun", edge_round=ctx.edge_round, version=self.flights.version)
        accumulator = self._accumulator()
        lost = await self._collect(ctx, accumulator, n_buffered(ctx.spec.sync.devices, len(self.trainers)))
        self._judge(accumulator.n_updates, lost, first=True)
        if not forward_sum:
            await self.thread.run(self._aggregate, ctx, accumulator)
        tasks = {seat: task for seat, (task, _) in sorted(self.ended.items())}
        outcomes = [outcome for _, (_, outcome) in sorted(self.ended.items())]
        self.state = (await self.thread.run(self.hooks.advance, ctx, self.state, tasks, outcomes)).state
        return accumulator.result()

    async def _collect(self, ctx: Context, accumulator: Accumulator, n: int) -> list[Failure]:
        """Dispatches idle devices and counts what arrives, until there are n updates or nothing is left in flight.

        Returns:
            The failures that no simulation explains.
        """
        n_failed = len(self.log.failures)
        while accumulator.n_updates < n:
            wake_s = await self._dispatch_idle(ctx)
            for flight in self.flights.unordered:
                await self._end(ctx, flight, accumulator)
            at_s, arrived = await self.flights.next(wake_s, self.agents.stop)
            if at_s == math.inf:
                break
            self.log.simulated_s = max(at_s - self.began_s, self.log.simulated_s)
            for flight in arrived:
                if accumulator.n_updates < n:
                    await self._end(ctx, flight, accumulator)
        return [failure for failure in self.log.failures[n_failed:] if failure.reason not in SIMULATED_LOSSES]

    # ---- dispatches

    async def _dispatch_idle(self, ctx: Context) -> float:
        """Sends idle devices that are on to work, as many as may be in flight.

        Returns:
            The instant at which one of the others is on again; infinite if that changes nothing.
        """
        now_s = self.began_s + self.log.simulated_s
        self.clock = self.clock.at(now_s)
        engaged = self.flights.by_seat.keys() | self.resting | self.order.retired.keys()
        idle = {number: self.clock.on_s(number, now_s) for number in self.trainers.numbers if number not in engaged}
        ready = sorted(number for number, on_s in idle.items() if on_s == now_s)
        room = max((ctx.spec.sync.devices.concurrency or len(self.trainers)) - len(self.flights.by_seat), 0)
        if len(ready) > room:
            drawn = ctx.at(wave=self.n_dispatches).numpy_rng("asynchronous devices")
            ready = [ready[place] for place in sorted(drawn.choice(len(ready), room, replace=False).tolist())]
        if ready:
            await self._dispatch(ctx.at(wave=self.n_dispatches), ready)
            self.n_dispatches += 1
        later = [on_s for on_s in idle.values() if on_s is not None and on_s > now_s]
        return min(later, default=math.inf) if len(ready) < room else math.inf

    async def _dispatch(self, ctx: Context, numbers: Sequence[int]) -> None:
        """Orders a visit of each of these seats."""
        seats = [self.clock.seat(number) for number in numbers]
        tasks = await self.thread.run(self.hooks.schedule, ctx, self.state, seats, EdgeView())
        dispatch = await self.thread.run(self._plan, ctx, apply_phase_kind(self.experiment, ctx, tasks))
        await self._send_orders(ctx, self.clock, self.agents, dispatch, self.flights.version)

    async def _send_orders(
        self, ctx: Context, clock: EdgeClock, agents: AgentClient, dispatch: Dispatch, version: int
    ) -> None:
        """Sends the orders of a dispatch. Dropped visits end when they are dropped."""
        agents = replace(agents, stop=self.flights.stop)
        exchange = Exchange(self.experiment, agents.order, dispatch, AgentReplies(), self._accumulator(), Deadline())
        timing = WaveTiming(clock, agents, ctx, dispatch, exchange.replies)
        await self.thread.run(agents.charge_orders, exchange)
        sizes: dict[Any, int] = {}
        earliest = dict.fromkeys(dispatch.tasks, dispatch.at_s)
        earliest |= {item.seat: timing.drops_s(item.seat) for item in dispatch.dropping}
        for item in dispatch.requests:
            earliest[item.seat] = timing.earliest_s(item.seat, agents.down_bytes(dispatch, item, sizes))
        answers: dict[int, asyncio.Task[None]] = {}
        for sent, visits in agents.visits_by_agent(exchange):
            answers |= dict.fromkeys(sent, asyncio.create_task(visits))
        self.flights.add(
            Flight(seat, version, timing, exchange, at_s, answers.get(seat)) for seat, at_s in earliest.items()
        )

    def _gone(self, seat: int, visit: Flight | Visit) -> bool:
        """Whether a device has left in the course of a visit: this edge was lost, and it went to another."""
        base = visit.base_version if isinstance(visit, Flight) else visit.base
        return seat not in self.trainers.numbers or base != self.order.bases.get(seat)

    async def _order_again(self) -> None:
        """Orders the stored visits in flight again; their devices do what they did before."""
        if self.stored_visits is None:
            return
        self.flights.version = self.stored_visits.version
        for stored in self.stored_visits.dispatches:
            visits = tuple(visit for visit in stored.order.visits if not self._gone(visit.seat, visit))
            if visits:
                await self._repeat(stored.replace(order=stored.order.replace(visits=visits)))

    async def _repeat(self, stored: StoredDispatch[Any]) -> None:
        sent, order = stored.order, self.order
        ctx = self.experiment.ctx(
            phase=sent.phase, round_no=sent.stage.round_no, n_clients=sent.n_clients, edge=order.edge
        ).at(edge_round=sent.stage.edge_round, wave=sent.stage.wave)
        as_then = {"phase": sent.phase, "n_clients": sent.n_clients, "round_no": sent.stage.round_no}
        agents = replace(self.agents, order=order.model_copy(update=as_then))
        clock = replace(self.clock, round_no=sent.stage.round_no, at_s=stored.at_s)
        tasks = {visit.seat: visit.task for visit in sent.visits}
        faults = clock.faults(ctx, tasks, stored.at_s, {})
        requests = [VisitRequest(v.seat, v.task, sent.messages[v.message], v.base) for v in sent.visits]
        finishing = [item for item in requests if item.seat not in faults.dropped]
        sendable, missing = reachable(self.experiment, agents.placement, order.edge, finishing)
        dispatch = Dispatch(
            sent.stage,
            tasks,
            sendable,
            dropping=[item for item in requests if item.seat in faults.dropped],
            at_s=stored.at_s,
            faults=faults,
            failures=[*missing, *simulated_failures(faults, order.edge, stored.at_s)],
        )
        await self._send_orders(ctx, clock, agents, dispatch, stored.version)

    # ---- arrivals

    async def _end(self, ctx: Context, flight: Flight, accumulator: Accumulator) -> None:
        self.flights.remove(flight)
        await self.thread.run(self._count, ctx, flight, accumulator)

    def _count(self, ctx: Context, flight: Flight, accumulator: Accumulator) -> None:
        """Adds the update of a visit that has arrived, and its record."""
        staleness, at_s = self.flights.version - flight.version, flight.timing.dispatch.at_s
        flight.exchange.count(flight.seat, accumulator, ctx.spec.sync.devices.staleness.steps(staleness))
        wave = flight.wave
        visit = visit_record(
            wave, flight.seat, flight.timing.cost_of_visit(wave.decision, flight.seat), at_s - self.order.clock_s
        ).replace(
            edge_round=ctx.edge_round,
            wave=self.n_arrivals,
            staleness=staleness,
            staleness_s=self.began_s + self.log.simulated_s - at_s,
        )
        self.n_arrivals += 1
        self.log.record_arrival(visit, wave)
        task = wave.dispatch.tasks[flight.seat]
        self.ended[flight.seat] = task, wave.outcome(flight.seat, task.kind)
        if visit.outcome == "failed":
            self.resting.add(flight.seat)

    def _aggregate(self, ctx: Context, accumulator: Accumulator) -> None:
        steps = ctx.spec.sync.devices.staleness.scale
        weight = mean_staleness_weight(accumulator.result(), self.algorithm.update, steps)
        super()._aggregate(ctx.at(staleness_weight=weight), accumulator)
