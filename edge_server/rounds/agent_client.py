"""The edge's client to agents: one POST an agent and wave, answers folded in as they arrive.

A lost device is a value (`Failure`), not an exception.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from edge_server.roster import Roster
from edge_server.rounds.real_clock import RealClock
from edge_server.rounds.reply_checks import check_sizes, check_uploads, check_visits
from edge_server.rounds.wave import Deadline, VisitRequest, Wave
from shared.core.errors import Cancelled, DeadlineExceeded, StrataError
from shared.core.records import copy_tensors
from shared.federation.aggregation import Accumulator, check_partial_sum
from shared.federation.experiment import Experiment
from shared.federation.messages import (
    EdgePlacement,
    Outcome,
    RoundOrder,
    UploadAnswer,
    UploadOrder,
    Uploads,
    Visit,
    VisitAnswer,
    VisitOrder,
    WaveId,
)
from shared.federation.timeouts import wait_until
from shared.federation.update_checks import check_origin, named_by
from shared.federation.visits.uploads import UploadBuilder, answer_bytes
from shared.federation.visits.visit import run_visits
from shared.runtime.worker import Worker
from shared.service.bodies import testing_s
from shared.service.client import POLL_S, Caller, Reply, while_alive
from shared.service.order_headers import EDGE_URL_HEADER, FOR_HEADER, check_reply_key, order_key
from shared.simulation.cost_model import LinkUse
from shared.storage.states import StateStore
from shared.wire import codec
from shared.wire.compression import decoded

log = logging.getLogger(__name__)
NEVER = Deadline()


@dataclass(frozen=True)
class AgentClient:
    """Reaches the seats of one home in one round."""

    experiment: Experiment
    order: RoundOrder[Any]
    placement: EdgePlacement
    loads: Mapping[str, int]
    caller: Caller
    roster: Roster
    worker: Worker
    stop: threading.Event
    states: StateStore
    own_url: str
    ttl_s: float

    @property
    def real(self) -> RealClock:
        """What differs with `clock: real`."""
        return RealClock(self.experiment, self.order, self.placement)

    # ---- visits

    async def visit(
        self, stage: WaveId, asked: list[VisitRequest], fold: Accumulator, *, hold: bool, deadline: Deadline = NEVER
    ) -> Wave:
        """Visit seats; what they send is folded in (unless held), what was lost is named in the wave.

        Args:
            stage: of the wave.
            asked: the visits.
            fold: takes updates in.
            hold: whether they are fetched later.
            deadline: when nobody is waited for any more.
        """
        phases = {item.seat: item.task.phase or self.order.phase for item in asked}
        wave = Wave(stage, phases, deadline=deadline)
        workers = [item for item in asked if self.experiment.seat(item.seat).role == "worker"]
        by_agent: dict[str, list[VisitRequest]] = {}
        for item in asked:
            if item in workers:
                continue
            agent = self.placement.addresses[item.seat].agent
            if item.seat in self.placement.offline:
                wave.not_asked([item.seat], self.order.edge, "offline", f"agent {agent} was taken offline")
            elif item.seat in self.placement.absent:
                wave.not_asked([item.seat], self.order.edge, "lost", f"agent {agent} is not heard")
            else:
                by_agent.setdefault(agent, []).append(item)
        await asyncio.gather(
            *(self._visit_agent(wave, agent, items, fold, hold) for agent, items in self.real.orders(by_agent)),
            *(self._visit_own(wave, item, fold, hold) for item in workers),
        )
        return wave

    def _visit_order(self, stage: WaveId, asked: list[VisitRequest], hold: bool) -> VisitOrder[Any]:
        messages: list[Any] = []
        visits = []
        for item in asked:
            known = [index for index, message in enumerate(messages) if message is item.message]
            if not known:
                messages.append(item.message)
            index = known[0] if known else len(messages) - 1
            visits.append(Visit(seat=item.seat, task=item.task, message=index, base=item.base))
        return VisitOrder[Any](
            stage=stage,
            spec=self.order.spec,
            population=self.order.population,
            phase=self.order.phase,
            n_clients=self.order.n_clients,
            edge=self.order.edge,
            hold=hold,
            messages=tuple(messages),
            visits=tuple(visits),
        )

    async def _visit_agent(
        self, wave: Wave, agent: str, asked: list[VisitRequest], fold: Accumulator, hold: bool
    ) -> None:
        body = codec.encode(self._visit_order(wave.stage, asked, hold))
        wave_seats = [item.seat for item in asked]
        model_s = max(self.real.longest_s(item.seat, item.task, body.n_bytes + item.moved_bytes) for item in asked)
        reply = await self._post(
            wave, agent, "visits", body, self.experiment.wire_types.visit_answer, wave_seats, model_s
        )
        if reply is not None:
            await self._guarded(wave, wave_seats, lambda: self._take_answer(wave, asked, reply, fold, hold))

    async def _visit_own(self, wave: Wave, item: VisitRequest, fold: Accumulator, hold: bool) -> None:
        """The edge's own worker: the same visit, without a link."""
        order = decoded(self._visit_order(wave.stage, [item], hold))
        began = time.monotonic()
        collector = await self.worker.run(
            lambda: run_visits(self.experiment, order, self.states, stopped=self.stop.is_set)
        )
        wave.testing_s += collector.testing_s
        if self.real.on:
            there_at = max(began + self.real.own_wall_s(wave.stage, collector.outcomes[0]), time.monotonic())
            await wait_until(min(there_at, wave.deadline.at), self.stop)
            wave.took([item.seat], time.monotonic() - began)
            if there_at > wave.deadline.at:
                told = f"the edge's own worker was not done within {wave.deadline.limit}"
                return wave.end_without([item.seat], self.order.edge, told)
        await self._guarded(wave, [item.seat], lambda: self._take_own(wave, collector, fold))

    def _take_own(self, wave: Wave, collector: UploadBuilder, fold: Accumulator) -> None:
        for outcome in collector.outcomes:
            self._note(wave, outcome)
        if collector.hold:
            wave.held = {item.seat: item for item in collector.singles}
        else:
            self._fold(wave, collector.uploads(), fold)

    def _take_answer(
        self, wave: Wave, asked: list[VisitRequest], answer: VisitAnswer[Any, Any], fold: Accumulator, hold: bool
    ) -> None:
        kinds, test_on = {item.seat: item.task.kind for item in asked}, self.experiment.spec.test_on
        check_visits(answer, kinds, hold=hold, reports=self.experiment.algorithm.reports, test_on=test_on)
        singles = {item.seat: item for item in answer.uploads.contributions}
        sizes: dict[Any, int] = {}
        for item, outcome in zip(asked, answer.outcomes, strict=True):
            self._note(wave, outcome)
            down = self._down_bytes(wave.stage, item, hold, sizes) + item.moved_bytes
            up = answer.uploads.link_bytes.get(item.seat) or answer_bytes(outcome, singles.get(item.seat))
            if outcome.held_bytes and not self.experiment.algorithm.reports:
                up = outcome.held_bytes  # it sends its update at once; only our services hold it back
            wave.links[item.seat] = LinkUse(down_bytes=down, up_bytes=up)
        if not hold:
            self._fold(wave, answer.uploads, fold)

    def charge_orders(self, wave: Wave, asked: list[VisitRequest], *, hold: bool) -> None:
        """Charge what seats receive that drop their visit afterwards; the edge's own worker has no link."""
        sizes: dict[Any, int] = {}
        for item in asked:
            if self.experiment.seat(item.seat).role != "worker":
                down = self._down_bytes(wave.stage, item, hold, sizes) + item.moved_bytes
                wave.links[item.seat] = LinkUse(down_bytes=down)

    def _down_bytes(self, stage: WaveId, item: VisitRequest, hold: bool, sizes: dict[Any, int]) -> int:
        """Bytes of the order if it had gone to this seat alone; orders that differ in the seat's digits only are alike.

        `sizes` holds those known so far, of orders whose parts are still there.
        """
        alike = (id(item.message), id(item.task), item.base, len(str(item.seat)))
        if alike not in sizes:
            sizes[alike] = codec.size(self._visit_order(stage, [item], hold and self.experiment.algorithm.reports))
        return sizes[alike]

    def _note(self, wave: Wave, outcome: Outcome[Any]) -> None:
        wave.outcomes[outcome.seat] = outcome
        if outcome.failure is not None:
            wave.failures.append(outcome.failure)

    # ---- uploads

    async def fetch(
        self, wave: Wave, admitted: list[int], fold: Accumulator, *, late: list[int], deadline: Deadline = NEVER
    ) -> None:
        """Fetch the held updates of the admitted seats and fold them in; late ones are kept in the wave."""
        wave.deadline = deadline
        by_agent: dict[str, list[int]] = {}
        for seat in [*admitted, *late]:
            if seat not in wave.held:
                by_agent.setdefault(self.placement.addresses[seat].agent, []).append(seat)
        mine = Uploads[Any](contributions=tuple(wave.held[seat] for seat in admitted if seat in wave.held))
        await self.worker.run(self._fold, wave, mine, fold)
        wave.late |= {seat: decoded(wave.held[seat]) for seat in late if seat in wave.held}
        orders = [(agent, [seat]) for agent, seats in sorted(by_agent.items()) for seat in seats]
        orders = orders if self.real.on else sorted(by_agent.items())
        await asyncio.gather(*(self._fetch_agent(wave, agent, seats, late, fold) for agent, seats in orders))

    def _upload_order(self, stage: WaveId, seats: list[int], late: Collection[int] = ()) -> UploadOrder:
        in_time, apart = [s for s in seats if s not in late], [s for s in seats if s in late]
        return UploadOrder(
            stage=stage, spec=self.order.spec, edge=self.order.edge, seats=tuple(in_time), late=tuple(apart)
        )

    def upload_order_bytes(self, stage: WaveId, seat: int) -> int:
        """Bytes of the order that fetches one seat's held update."""
        return codec.size(self._upload_order(stage, [seat]))

    async def _fetch_agent(self, wave: Wave, agent: str, seats: list[int], late: list[int], fold: Accumulator) -> None:
        body = codec.encode(self._upload_order(wave.stage, seats, late))
        model_s = max(self.real.longest_s(seat, None, body.n_bytes) for seat in seats)
        reply = await self._post(wave, agent, "uploads", body, self.experiment.wire_types.upload_answer, seats, model_s)
        if reply is not None:
            apart = [seat for seat in late if seat in seats]
            await self._guarded(wave, seats, lambda: self._take_uploads(wave, seats, apart, reply, fold))

    def _take_uploads(
        self, wave: Wave, seats: list[int], late: list[int], answer: UploadAnswer[Any], fold: Accumulator
    ) -> None:
        check_uploads(answer, [seat for seat in seats if seat not in late], late)
        check_sizes(answer, wave.outcomes, reports=self.experiment.algorithm.reports)
        wave.failures += answer.failures
        for item in answer.late:
            with self._costing_its_seat_alone(wave, item.seat):
                self._check(wave, [item.seat], item.update)
                wave.late[item.seat] = copy_tensors(item)
        self._fold(wave, answer.uploads, fold)

    def _fold(self, wave: Wave, uploads: Uploads[Any], fold: Accumulator) -> None:
        """Fold an answer in; an update that cannot be summed is its seat's failure alone."""
        for item in uploads.contributions:
            with self._costing_its_seat_alone(wave, item.seat):
                self._check(wave, [item.seat], item.update)
                fold.add(item.update, item.n_samples)
                wave.used.add(item.seat)
        if uploads.partial_sum is not None:
            stand_in = check_partial_sum(uploads.partial_sum, fold.kind, fold.fixed_point, model=fold.model)
            self._check(wave, sorted(uploads.link_bytes), stand_in)
            fold.merge(uploads.partial_sum, take=True, checked=True)
            wave.used |= uploads.link_bytes.keys()

    def _check(self, wave: Wave, seats: list[int], update: Any) -> None:
        """See that an update, or what stands in for a sum, can be of these seats' visits."""
        stage, order = wave.stage, self.order
        ctx = self.experiment.ctx(phase="", round_no=stage.round_no, n_clients=order.n_clients, edge=order.edge)
        ctx = ctx.at(edge_round=stage.edge_round, wave=stage.wave)
        visits = [ctx.at(phase=wave.phases[seat], seat=seat) for seat in seats]
        check_origin(self.experiment, visits[0], update, named_by(visits))

    @contextmanager
    def _costing_its_seat_alone(self, wave: Wave, seat: int) -> Iterator[None]:
        """What is wrong in here is a failure of one seat."""
        try:
            yield
        except StrataError as error:
            wave.fail([seat], self.order.edge, error.code, error.detail)

    # ---- the wait

    async def _post(
        self, wave: Wave, agent: str, path: str, body: codec.Body, kind: type[Any], seats: list[int], model_s: float
    ) -> Any | None:
        """The decoded answer, or None and failures in the wave; `model_s` are wall seconds of waiting by the model."""
        began = time.monotonic()
        limit_s = self.order.spec.timeouts.visit_s * max(self.loads.get(agent, 1), 1) + model_s
        left_s = max(wave.deadline.at - began, 0.0)
        try:
            reply = await self._asked(wave, agent, path, body, kind, seats, min(limit_s, left_s))
        except Cancelled:
            raise
        except DeadlineExceeded as error:
            if left_s <= limit_s:
                heard = f"agent {agent} was heard {self.roster.silent_s(agent, began):.1f} s ago"  # slow, or silent
                wave.end_without(seats, self.order.edge, f"no answer within {wave.deadline.limit}; {heard}")
            else:
                wave.fail(seats, self.order.edge, "timeout", error.detail)
        except StrataError as error:
            wave.fail(seats, self.order.edge, error.code, error.detail)
        except Exception as error:
            log.exception("asking agent %s", agent)
            wave.fail(seats, self.order.edge, "error", f"{type(error).__name__}: {error}")
        else:
            wave.socket_bytes += reply.sent_bytes + reply.received_bytes
            wave.testing_s += testing_s(reply.headers)
            return reply.record
        finally:
            if self.real.on:
                wave.took(seats, time.monotonic() - began)
        return None

    async def _asked(
        self, wave: Wave, agent: str, path: str, body: codec.Body, kind: type[Any], seats: list[int], limit_s: float
    ) -> Reply[Any]:
        """The answer of an agent that is heard."""
        stage, real = wave.stage, self.real
        asked = order_key(
            path, stage.run_id, stage.round_no, stage.edge_round, stage.wave, self.order.edge, *real.lane(seats)
        )
        request = self.caller.post_record(
            lambda: f"{self.roster.moved.get(agent, self.placement.addresses[seats[0]].url)}/{path}",
            body,
            kind,
            limit_s=limit_s,
            who=f"agent {agent}",
            headers={EDGE_URL_HEADER: self.own_url, FOR_HEADER: agent, **real.headers(seats[0])},
            model=self.experiment.shapes,
            n_seats=len(seats),
        )
        since = time.monotonic()

        def check() -> None:
            if self.stop.is_set():
                raise Cancelled("nobody waits for this round any more")
            self.roster.check_alive(agent, since, self.ttl_s)

        reply = await while_alive(request, check, poll_s=min(POLL_S, self.ttl_s))
        check_reply_key(reply.headers, asked)
        return reply

    async def _guarded(self, wave: Wave, seats: list[int], take: Callable[[], None]) -> None:
        """Take an answer in, on the worker thread; what does not fit is a failure of its seats."""
        try:
            await self.worker.run(take)
            return
        except Cancelled:
            raise
        except StrataError as error:
            reason, detail = error.code, error.detail
        except Exception as error:
            log.exception("the answer for seats %s", seats)
            reason, detail = "error", f"{type(error).__name__}: {error}"
        for seat in seats:
            wave.outcomes.pop(seat, None)
        wave.failures = [failure for failure in wave.failures if failure.seat not in seats]
        wave.fail(seats, self.order.edge, reason, detail)
