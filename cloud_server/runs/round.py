"""One cloud round: broadcast -> POST /rounds to every edge at once -> aggregate -> the new state and its record."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from cloud_server.runs.edge_client import EdgeClient, EdgeReply
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.repository import Checkpoint
from cloud_server.runs.round_map import RoundMap
from cloud_server.runs.round_record import Answers, Recorder
from shared.core.errors import NotReady, StrataError, WireError
from shared.core.records import canonical
from shared.core.tensors import digest
from shared.federation.aggregation import Accumulator, check_partial_sum, mean_of
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import EdgePlacement, Failure, RoundAnswer, RoundOrder
from shared.federation.update_checks import check_origin
from shared.run_records.rounds import RoundDetail
from shared.runtime.logs import log_context, log_event
from shared.runtime.worker import Worker
from shared.service.order_headers import order_key
from shared.storage.states import Version
from shared.wire import codec

log = logging.getLogger(__name__)


class QuorumMissed(NotReady):
    """Too few edges answered; whether another attempt may help depends on whether the map has changed."""


@dataclass
class CloudRound:
    """One attempt at a round of a run, from its committed state to the next.

    Who is there was looked at once, for `chart`. `clock_s` is the simulated instant at which the round begins.
    """

    run_id: str
    round_no: int
    kind: Literal["train", "evaluate"]
    experiment: Experiment
    checkpoint: Checkpoint[Any]
    placement: PlacementManager
    round_map: RoundMap
    edges: EdgeClient
    worker: Worker
    attempt: int = 1
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        self.ctx: Context = self.experiment.ctx(
            phase=self.experiment.phase_of(self.round_no).name, round_no=self.round_no, n_clients=self._n_clients()
        )
        self.hooks = self.experiment.algorithm.cloud

    def _n_clients(self) -> int:
        """Training clients of this round: homes where edges are clients, else taken seats that train."""
        if self.experiment.spec.client == "edge":
            return len(self.experiment.population.edges)
        taken = self.placement.placement.agents.keys() - self.checkpoint.retired.keys()
        return sum(self.experiment.seat(seat).role == "train" for seat in taken)

    async def run(self) -> tuple[Checkpoint[Any], RoundDetail]:
        """Ask every home's edge, aggregate what came; the new state and the record.

        Raises:
            QuorumMissed: too few edges answered; names who and why.
        """
        with log_context(round=self.round_no):
            return await self._run()

    async def _run(self) -> tuple[Checkpoint[Any], RoundDetail]:
        began = time.monotonic()
        answers = await self._ask_all()
        after, model_sha256, figures = await self.worker.run(self._aggregate, answers)
        recorder = Recorder(
            self.experiment, self.round_map, self.placement.placement, self.checkpoint.retired, self.ctx, self.clock_s
        )
        return after, recorder.detail(
            answers,
            kind=self.kind,
            model_sha256=model_sha256,
            wall_s=time.monotonic() - began,
            attempts=self.attempt,
            figures=figures,
        )

    async def _ask_all(self) -> Answers:
        homes = sorted(self.round_map.edges)
        asked = dict(zip(homes, await asyncio.gather(*(self._ask(home) for home in homes)), strict=True))
        failed = {home: found for home, found in asked.items() if isinstance(found, Failure)}
        if self.experiment.spec.client == "edge":  # its devices wait for it
            for home, edge in self.round_map.away.items():
                failed[home] = Failure(edge=home, reason="lost", detail=f"edge {edge} is not heard: its home waits")
        return Answers({home: found for home, found in asked.items() if isinstance(found, EdgeReply)}, failed)

    async def _ask(self, home: int) -> EdgeReply | Failure:
        """One home's answer, or its failure as data."""
        edge = self.round_map.edges[home]
        with log_context(home=home, edge=edge):
            found = await self._asked(home, edge)
            if isinstance(found, Failure):
                log_event("order.failed", level=logging.WARNING, reason=found.reason, detail=found.detail)
            else:
                log_event("order.answered", bytes=found.up_bytes, n_updates=found.answer.n_updates)
            return found

    async def _asked(self, home: int, edge: str) -> EdgeReply | Failure:
        seating = self.round_map.edge_placement(self.run_id, home)
        try:
            body = await self.worker.run(self._order, home, seating)
            log_event("order.sent", kind=self.kind, bytes=body.n_bytes)
            asked = order_key("rounds", self.run_id, self.round_no, home)
            reply = await self.edges.round(edge, self.experiment, body, seating, self.placement.loads(), asked)
            await asyncio.to_thread(self._check, home, reply.answer)  # of several edges at once
            return reply
        except StrataError as error:
            return Failure(edge=home, reason=error.code, detail=f"{edge}: {error.detail}")
        except Exception as error:
            log.exception("round %s at %s", self.round_no, edge)
            return Failure(edge=home, reason="error", detail=f"{edge}: {type(error).__name__}: {error}")

    def _order(self, home: int, seating: EdgePlacement) -> codec.Body:
        before = self.checkpoint
        seats = {seat.number for seat in self.experiment.population.at(home) if seat.role == "worker"} | set(
            seating.addresses
        )
        there = [self.experiment.seat(number) for number in sorted(seating.addresses) if number not in before.retired]
        order = RoundOrder[Any](
            run_id=self.run_id,
            round_no=self.round_no,
            spec=self.experiment.spec,
            population=self.experiment.population.digest,
            placement=codec.digest_of(canonical(seating).encode()),
            phase=self.ctx.phase,
            kind=self.kind,
            n_clients=self.ctx.n_clients,
            edge=home,
            base=before.edge_bases.get(home),
            bases={seat: version for seat, version in before.bases.items() if seat in seats},
            retired={seat: why for seat, why in before.retired.items() if seat in seats},
            clock_s=self.clock_s,
            broadcast=self.hooks.broadcast(self.ctx, before.state, home, there),
        )
        return codec.encode(order)

    def _check(self, home: int, answer: RoundAnswer[Any]) -> None:
        """An edge speaks for the seats that visit its home only, and its sum is one of updates such as they send.

        Raises:
            BadInput, NotFinite, OutOfBound, WireError: it speaks of others, or there is no such sum.
        """
        workers = {seat.number for seat in self.experiment.population.at(home) if seat.role == "worker"}
        known = workers | set(self.round_map.seats_at(home))
        told = {line.seat for line in answer.lines} | answer.bases.keys() | answer.retired.keys()
        tests = set(answer.own_on).union(*(line.own_on for line in answer.lines)) - set(self.experiment.spec.test_on)
        if tests:
            raise WireError(f"the answer for home {home} has scores of {min(tests)[:40]!r}, which is no test set here")
        if answer.edge != home or not told <= known:
            others = f"home {answer.edge}, seats {sorted(told - known)}"
            raise WireError(f"the answer for home {home} speaks of {others}")
        update: Any = answer.update
        if answer.partial_sum is not None:
            update = check_partial_sum(
                answer.partial_sum,
                self.experiment.algorithm.update,
                self.experiment.fixed_point,
                model=self.experiment.shapes,
            )
        if update is not None:
            self._check_update(self.ctx.at(edge=home), sorted(known), update)

    def _check_update(self, edge: Context, seats: list[int], update: Any) -> None:
        """Of an edge that forms a model it is the edge's own, else one such as its seats send; both speak of these."""
        clients = {edge.at(seat=seat).client_id for seat in seats}
        own = self.experiment.algorithm.edge.forms_model(edge) or not seats
        check_origin(self.experiment, edge if own else edge.at(seat=seats[0]), update, clients or {edge.client_id})

    def _require_quorum(self, answers: Answers) -> None:
        """Enough of the edges that had something to do must have answered."""
        n = len(answers.replies) + len(answers.failed)
        need = max(self.experiment.spec.quorum_of(n), 1)
        if len(answers.replies) < need:
            why = "; ".join(failure.detail for _, failure in sorted(answers.failed.items())) or "no edge is alive"
            raise QuorumMissed(f"round {self.round_no}: quorum of {need} of {n} edges missed: {why}")

    # ---- the new state

    def _aggregate(self, answers: Answers) -> tuple[Checkpoint[Any], str, dict[str, Any]]:
        """Add up what came; an answer that cannot be added is its edge's failure. The state, its digest and figures."""
        replies, failed = answers.replies, answers.failed
        state, update = self.checkpoint.state, self.experiment.algorithm.update
        fold = Accumulator(update, self.experiment.fixed_point, model=self.experiment.shapes)
        for home in sorted(replies):
            try:
                self._fold(fold, replies[home].answer)
                replies[home] = replies[home].folded_in()
            except StrataError as error:
                del replies[home]
                failed[home] = Failure(
                    edge=home, reason=error.code, detail=f"{self.round_map.edges[home]}: {error.detail}"
                )
        self._require_quorum(answers)
        if self.kind == "train":
            mean = mean_of(fold.result(), update, self.experiment.fixed_point, model=self.experiment.shapes)
            if mean is not None:
                counted = self.ctx.at(n_updates=fold.n_updates, n_samples=fold.n_samples)
                state = self.hooks.aggregate(counted, state, mean)
        models = self.hooks.models(self.ctx, state)
        model_sha256 = digest(models["global"]) if "global" in models else ""
        figures = self.hooks.figures(self.ctx, state) if self.kind == "train" else {}
        return self._after(state, replies), model_sha256, figures

    def _fold(self, fold: Accumulator, answer: RoundAnswer[Any]) -> None:
        if answer.partial_sum is not None:
            fold.merge(answer.partial_sum, take=True, checked=True)  # when it came
        elif answer.update is not None:
            fold.add(answer.update, answer.n_samples, answer.n_updates)

    def _after(self, state: Any, replies: dict[int, EdgeReply]) -> Checkpoint[Any]:
        if self.kind == "evaluate":
            return self.checkpoint
        bases, edge_bases, retired = (
            dict(self.checkpoint.bases),
            dict(self.checkpoint.edge_bases),
            dict(self.checkpoint.retired),
        )
        for home, reply in replies.items():
            bases |= reply.answer.bases
            retired |= reply.answer.retired
            edge_bases[home] = reply.answer.base or Version(self.round_no)
        return Checkpoint[Any](round_no=self.round_no, state=state, bases=bases, edge_bases=edge_bases, retired=retired)
