"""The edge's client to agents: one POST to each agent of a wave; updates are added to the sum as they arrive.

A lost device is a value (`Failure`), not an exception.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from edge_server.roster import Roster
from edge_server.rounds.exchange import Exchange
from edge_server.rounds.placements import KeptPlacement
from edge_server.rounds.real_clock import RealClock
from edge_server.rounds.wave import AgentReplies, Deadline, Dispatch, VisitRequest, WaveDecision
from shared.core.errors import Cancelled, DeadlineExceeded, StrataError
from shared.federation.aggregation import Accumulator
from shared.federation.experiment import Experiment
from shared.federation.kept_states import keep_from_headers, oldest_needed
from shared.federation.link_bytes import spec_on_links
from shared.federation.messages import (
    RoundOrder,
    UploadOrder,
    Visit,
    VisitOrder,
    WaveId,
)
from shared.federation.placements import EdgePlacement
from shared.federation.real_time import wait_until
from shared.federation.visits.visit import run_visits
from shared.identity.names import agent_identity
from shared.runtime.compute_thread import ComputeThread
from shared.service.bodies import testing_s
from shared.service.client import POLL_S, Caller, Reply, while_alive
from shared.service.order_headers import ASSIGNMENT_HEADER, FOR_HEADER, check_reply_key, order_key
from shared.simulation.cost_model import LinkUse
from shared.spec.experiment import ExperimentSpec
from shared.storage.states import StateStore, Version
from shared.wire import codec
from shared.wire.compression import decoded

log = logging.getLogger(__name__)
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class AgentClient:
    """Reaches the seats of one edge in one round; `own_address` are the headers that tell agents who orders."""

    experiment: Experiment
    order: RoundOrder[Any]
    kept: KeptPlacement
    caller: Caller
    roster: Roster
    thread: ComputeThread
    stop: threading.Event
    states: StateStore
    own_address: Mapping[str, str]
    ttl_s: float

    @property
    def placement(self) -> EdgePlacement:
        """The seats that visit the edge, and their agents."""
        return self.kept.placement

    @property
    def real(self) -> RealClock:
        """The differences that `clock: real` makes."""
        return RealClock(self.experiment, self.order, self.placement)

    # ---- visits

    async def visit(self, dispatch: Dispatch, accumulator: Accumulator) -> AgentReplies:
        """Sends the requests of a wave and waits for the answers.

        Args:
            dispatch: the wave.
            accumulator: sums the updates, unless the agents hold them.
        """
        exchange = Exchange(self.experiment, self.order, dispatch, AgentReplies(), accumulator, dispatch.deadline)
        role = self.experiment.population.role
        own = [request for request in dispatch.requests if role(request.seat) == "worker"]
        await asyncio.gather(
            *(visits for _, visits in self.visits_by_agent(exchange)),
            *(self._visit_own(exchange, request) for request in own),
        )
        if dispatch.dropping:
            await self.thread.run(self.charge_orders, exchange)
        return exchange.replies

    def visits_by_agent(self, exchange: Exchange) -> list[tuple[list[int], Coroutine[Any, Any, None]]]:
        """For each order of a wave its seats, and what sends it and takes the answer."""
        by_agent: dict[str, list[VisitRequest]] = {}
        for request in exchange.dispatch.requests:
            if self.experiment.population.role(request.seat) != "worker":
                by_agent.setdefault(self.placement.host(request.seat).agent, []).append(request)
        orders = self.real.orders(by_agent)
        return [([r.seat for r in requests], self._visit_agent(exchange, a, requests)) for a, requests in orders]

    def _keep_from(self, requests: Sequence[VisitRequest]) -> Version | None:
        """The oldest version of these seats' states that must be kept; a seat may have a newer one of this round."""
        return oldest_needed(self.order.bases, {request.seat: request.base_version for request in requests})

    @cached_property
    def _spec_on_links(self) -> ExperimentSpec:
        return spec_on_links(self.order.spec)

    def visit_order(
        self, wave_id: WaveId, requests: list[VisitRequest], hold: bool, spec: ExperimentSpec | None = None
    ) -> VisitOrder[Any]:
        """The order of some visits of a wave; `spec` replaces that of the run, where only the size counts."""
        messages: list[Any] = []
        visits = []
        for request in requests:
            known = [index for index, message in enumerate(messages) if message is request.message]
            if not known:
                messages.append(request.message)
            index = known[0] if known else len(messages) - 1
            visits.append(Visit(seat=request.seat, task=request.task, message=index, base=request.base_version))
        return VisitOrder[Any](
            stage=wave_id,
            spec=spec or self.order.spec,
            population=self.order.population,
            phase=self.order.phase,
            n_clients=self.order.n_clients,
            edge=self.order.edge,
            hold=hold,
            messages=tuple(messages),
            visits=tuple(visits),
        )

    async def _visit_agent(self, exchange: Exchange, agent: str, requests: list[VisitRequest]) -> None:
        body = codec.encode(self.visit_order(exchange.dispatch.wave_id, requests, exchange.dispatch.hold))
        seats = [request.seat for request in requests]
        model_s = max(self.real.longest_s(item.seat, item.task, body.n_bytes + item.moved_bytes) for item in requests)
        kind = self.experiment.wire_types.visit_answer
        keep_from = keep_from_headers(self._keep_from(requests))
        reply = await self._post(exchange, agent, "visits", body, kind, seats, model_s, keep_from)
        if reply is not None:
            await self._process_safely(exchange, seats, lambda: self._process_answer(exchange, requests, reply))

    async def _visit_own(self, exchange: Exchange, request: VisitRequest) -> None:
        """The visit of the edge's own worker: the same, without a link."""
        dispatch, replies, deadline = exchange.dispatch, exchange.replies, exchange.deadline
        order = decoded(self.visit_order(dispatch.wave_id, [request], dispatch.hold))
        began = time.monotonic()
        builder = await self.thread.run(
            lambda: run_visits(
                self.experiment,
                order,
                self.states,
                keep_from=self._keep_from([request]),
                stopped=self.stop.is_set,
            )
        )
        replies.testing_s += builder.testing_s
        if self.real.on:
            done_at = max(began + self.real.own_wall_s(dispatch.wave_id, builder.outcomes[0]), time.monotonic())
            await wait_until(min(done_at, deadline.at), self.stop)
            replies.measure([request.seat], time.monotonic() - began)
            if done_at > deadline.at:
                detail = f"the edge's own worker was not done within {deadline.limit}"
                return replies.miss_deadline([request.seat], self.order.edge, detail)
        await self._process_safely(exchange, [request.seat], lambda: exchange.take_own_visit(builder))

    def _process_answer(self, exchange: Exchange, requests: list[VisitRequest], reply: Reply[Any]) -> None:
        sizes: dict[Any, int] = {}
        exchange.take_visits(
            requests, reply.record, reply.received_bytes, lambda item: self.down_bytes(exchange.dispatch, item, sizes)
        )

    def charge_orders(self, exchange: Exchange) -> None:
        """Charges the orders of seats that drop their visit afterwards; the edge's own worker has no link."""
        sizes: dict[Any, int] = {}
        for request in exchange.dispatch.dropping:
            if self.experiment.population.role(request.seat) != "worker":
                down = self.down_bytes(exchange.dispatch, request, sizes)
                exchange.replies.links[request.seat] = LinkUse(down_bytes=down)

    def down_bytes(self, dispatch: Dispatch, request: VisitRequest, sizes: dict[Any, int]) -> int:
        """Size of the order as if it went to this seat alone, with the samples that follow it.

        `sizes` caches the sizes of orders that differ in nothing but the seat's digits.
        """
        alike = (id(request.message), id(request.task), request.base_version, len(str(request.seat)))
        if alike not in sizes:
            hold = dispatch.hold and self.experiment.algorithm.reports
            sizes[alike] = codec.size(self.visit_order(dispatch.wave_id, [request], hold, self._spec_on_links))
        return sizes[alike] + request.moved_bytes

    # ---- uploads

    async def fetch(
        self,
        dispatch: Dispatch,
        replies: AgentReplies,
        decision: WaveDecision,
        accumulator: Accumulator,
        deadline: Deadline,
    ) -> None:
        """Fetches the held updates that were admitted and sums them; late ones are put aside in the replies.

        Args:
            dispatch: the wave.
            replies: to its visits.
            decision: names the admitted and the late seats.
            accumulator: sums the admitted updates.
            deadline: with `clock: real`, when the edge stops waiting.
        """
        if not dispatch.hold:
            return
        exchange = Exchange(self.experiment, self.order, dispatch, replies, accumulator, deadline)
        admitted, late, held = decision.admitted, decision.late, replies.held
        by_agent: dict[str, list[int]] = {}
        for seat in [*admitted, *late]:
            if seat not in held:
                by_agent.setdefault(self.placement.host(seat).agent, []).append(seat)
        own = [held[seat] for seat in admitted if seat in held]
        await self.thread.run(exchange.add_singles, own)
        replies.late |= {seat: decoded(held[seat]) for seat in late if seat in held}
        orders = [(agent, [seat]) for agent, seats in sorted(by_agent.items()) for seat in seats]
        orders = orders if self.real.on else sorted(by_agent.items())
        await asyncio.gather(*(self._fetch_agent(exchange, agent, seats, late) for agent, seats in orders))

    def _upload_order(self, wave_id: WaveId, seats: list[int], late: Collection[int] = ()) -> UploadOrder:
        in_time, apart = [s for s in seats if s not in late], [s for s in seats if s in late]
        return UploadOrder(
            stage=wave_id, spec=self.order.spec, edge=self.order.edge, seats=tuple(in_time), late=tuple(apart)
        )

    def upload_order_bytes(self, wave_id: WaveId, seat: int) -> int:
        """Size of the order that fetches the held update of one seat."""
        order = self._upload_order(wave_id, [seat])
        return codec.size(order.model_copy(update={"spec": self._spec_on_links}))

    async def _fetch_agent(self, exchange: Exchange, agent: str, seats: list[int], late: list[int]) -> None:
        body = codec.encode(self._upload_order(exchange.dispatch.wave_id, seats, late))
        model_s = max(self.real.longest_s(seat, None, body.n_bytes) for seat in seats)
        kind = self.experiment.wire_types.upload_answer
        reply = await self._post(exchange, agent, "uploads", body, kind, seats, model_s)
        if reply is not None:
            take = partial(exchange.take_uploads, seats, late, reply.record, reply.received_bytes)
            await self._process_safely(exchange, seats, take)

    # ---- the wait

    async def _post(
        self,
        exchange: Exchange,
        agent: str,
        path: str,
        body: codec.Body,
        kind: type[Any],
        seats: list[int],
        model_s: float,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Reply[Any] | None:
        """The answer; None if there is none, with failures in the replies.

        `model_s`: wall seconds that simulated devices may wait before they answer.
        """
        replies, edge, deadline = exchange.replies, self.order.edge, exchange.deadline
        began, since = time.monotonic(), self.roster.clock()
        limit_s = self.order.spec.timeouts.visit_s * max(self.kept.loads.get(agent, 1), 1) + model_s
        left_s = max(deadline.at - began, 0.0)
        try:
            sent = {**self._who(agent), **headers}
            reply = await self._request(
                exchange.dispatch.wave_id, agent, path, body, kind, seats, min(limit_s, left_s), sent
            )
        except Cancelled:
            raise
        except DeadlineExceeded as error:
            if left_s <= limit_s:
                heard = f"agent {agent} was heard {self.roster.silent_s(agent, since):.1f} s ago"  # slow, or silent
                replies.miss_deadline(seats, edge, f"no answer within {deadline.limit}; {heard}")
            else:
                replies.fail(seats, edge, "timeout", error.detail)
        except StrataError as error:
            replies.fail(seats, edge, error.code, error.detail)
        except Exception as error:
            log.exception("the request to agent %s failed", agent)
            replies.fail(seats, edge, "error", f"{type(error).__name__}: {error}")
        else:
            replies.socket_bytes += reply.sent_bytes + reply.received_bytes
            replies.testing_s += testing_s(reply.headers)
            return reply
        finally:
            if self.real.on:
                replies.measure(seats, time.monotonic() - began)
        return None

    async def _request(
        self,
        wave_id: WaveId,
        agent: str,
        path: str,
        body: codec.Body,
        kind: type[Any],
        seats: list[int],
        limit_s: float,
        headers: Mapping[str, str],
    ) -> Reply[Any]:
        """The answer of an agent, awaited for as long as the agent is heard."""
        real = self.real
        key = order_key(
            path,
            wave_id.run_id,
            wave_id.round_no,
            wave_id.edge_round,
            wave_id.wave,
            self.order.edge,
            *real.seat_key(seats),
        )
        request = self.caller.post_record(
            lambda: f"{self.roster.moved.get(agent, self.placement.host(seats[0]).url)}/{path}",
            body,
            kind,
            limit_s=limit_s,
            peer=agent_identity(agent),
            headers={**headers, **real.headers(seats[0])},
            model=self.experiment.shapes,
            n_seats=len(seats),
        )
        since = self.roster.clock()

        def check() -> None:
            if self.stop.is_set():
                raise Cancelled("round cancelled: the caller disconnected")
            self.roster.check_alive(agent, since, self.ttl_s)

        with self.roster.awaiting(agent):
            reply = await while_alive(request, check, poll_s=min(POLL_S, self.ttl_s))
        check_reply_key(reply.headers, key)
        return reply

    def _who(self, agent: str) -> dict[str, str]:
        """The headers that tell an agent who orders, whom, and by what right."""
        assigned = self.kept.assignments.get(agent)
        return {**self.own_address, FOR_HEADER: agent, **({ASSIGNMENT_HEADER: assigned} if assigned else {})}

    async def _process_safely(self, exchange: Exchange, seats: list[int], process: Callable[[], None]) -> None:
        """Processes an answer on the compute thread; an error fails the visits of all its seats."""
        replies = exchange.replies
        try:
            await self.thread.run(process)
            return
        except Cancelled:
            raise
        except StrataError as error:
            reason, detail = error.code, error.detail
        except Exception as error:
            log.exception("the answer for devices %s", seats)
            reason, detail = "error", f"{type(error).__name__}: {error}"
        for seat in seats:
            replies.outcomes.pop(seat, None)
        replies.failures = [failure for failure in replies.failures if failure.seat not in seats]
        replies.fail(seats, self.order.edge, reason, detail)
