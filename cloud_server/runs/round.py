"""One round at the cloud: send an order to every edge, aggregate their answers, record the round."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from cloud_server.runs.answer_checks import AnswerChecks
from cloud_server.runs.checkpoint import Checkpoint
from cloud_server.runs.edge_client import EdgeClient, EdgeReply
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.quorum import RoundQuorum
from cloud_server.runs.round_map import RoundMap
from cloud_server.runs.round_record import EdgeReplies, Recorder
from shared.core.errors import StrataError
from shared.core.number_sets import NumberSet
from shared.core.records import canonical
from shared.core.tensor_records import TensorMap
from shared.core.tensors import digest
from shared.core.user_code import described
from shared.federation.aggregation import Accumulator, can_be_mean, mean_of, weighted
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure, RoundAnswer, RoundOrder
from shared.federation.placements import EdgePlacement
from shared.federation.update_weights import mean_staleness_weight
from shared.run_records.rounds import RoundDetail
from shared.runtime.compute_thread import ComputeThread, run_beside
from shared.runtime.logs import log_context_of, log_event
from shared.service.order_headers import order_key
from shared.storage.states import Version
from shared.wire import codec
from shared.wire.compression import decoded

log = logging.getLogger(__name__)


class RoundResult(NamedTuple):
    """The checkpoint after a round, the digest of its file (empty after an evaluation), and the record of the round."""

    checkpoint: Checkpoint[Any]
    file: str
    detail: RoundDetail


@dataclass
class CloudRound:
    """One attempt at a round of a run, from its checkpoint to the next.

    Attributes:
        checkpoint: the state before the round.
        round_map: which seats visit which edge, determined once, when the attempt begins.
        write: writes the file of a checkpoint, beside the digest of the model; returns its digest.
        attempt: counts from 1.
        clock_s: simulated seconds of the run at which the round begins.
    """

    run_id: str
    round_no: int
    kind: Literal["train", "evaluate"]
    experiment: Experiment
    checkpoint: Checkpoint[Any]
    placement: PlacementManager
    round_map: RoundMap
    edges: EdgeClient
    thread: ComputeThread
    write: Callable[[Checkpoint[Any]], Awaitable[str]]
    attempt: int = 1
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        self.ctx: Context = self.experiment.ctx(
            phase=self.experiment.phase_of(self.round_no).name, round_no=self.round_no, n_clients=self._n_clients()
        )
        self.hooks = self.experiment.algorithm.cloud
        self.coded = self.experiment.edge_compressor.messages()

    def _n_clients(self) -> int:
        return n_clients(self.experiment, self.placement, self.checkpoint.retired)

    @log_context_of(lambda self: {"round": self.round_no})
    async def run(self) -> RoundResult:
        """Runs the round and writes the state after it; nothing is committed yet.

        Raises:
            QuorumMissed: too few visits were answered; names the lost ones, the missing edges, and why.
        """
        began = time.monotonic()
        answers = await self._order_all_edges()
        total = await self.thread.run(self._add_up, answers)
        quorum = RoundQuorum(self.experiment, self.ctx, self.round_map, self.checkpoint.retired)
        await asyncio.to_thread(quorum.require, answers, trains=self.kind == "train")
        state = await self.thread.run(self._aggregate, total)
        del total  # the sum, twice as large as the model
        model, figures = await self.thread.run(model_and_figures, self.experiment, self.ctx, state)
        checkpoint = self._checkpoint_after(state, answers)
        model_sha256, file = await asyncio.gather(asyncio.to_thread(digest, model), self._written(checkpoint))
        detail = self._recorder().detail(
            answers,
            kind=self.kind,
            model_sha256=model_sha256 if model else "",
            wall_s=time.monotonic() - began,
            attempts=self.attempt,
            figures=figures if self.kind == "train" else {},
        )
        return RoundResult(checkpoint, file, detail)

    # ---- the edges

    async def _order_all_edges(self) -> EdgeReplies:
        """The answer or the failure of every edge that is served; all get their orders at once."""
        edges = sorted(self.round_map.edges)
        found = dict(zip(edges, await asyncio.gather(*(self._order_edge(edge) for edge in edges)), strict=True))
        failed = {edge: answer for edge, answer in found.items() if isinstance(answer, Failure)}
        if self.experiment.spec.client == "edge":  # then its devices visit no other edge
            for edge, name in self.round_map.away.items():
                failed[edge] = Failure(edge=edge, reason="lost", detail=f"edge {name} is lost, its devices wait for it")
        return EdgeReplies({edge: answer for edge, answer in found.items() if isinstance(answer, EdgeReply)}, failed)

    @log_context_of(lambda self, edge: {"home": edge, "edge": self.round_map.edges[edge]})
    async def _order_edge(self, edge: int) -> EdgeReply | Failure:
        """An edge's answer, checked; what went wrong is returned as data."""
        name = self.round_map.edges[edge]
        try:
            reply = await self._send_order(edge, name)
        except StrataError as error:
            failure = Failure(edge=edge, reason=error.code, detail=f"{name}: {error.detail}")
        except Exception as error:
            log.exception("round %s at %s", self.round_no, name)
            failure = Failure(edge=edge, reason="error", detail=f"{name}: {described(error)}")
        else:
            log_event("order.answered", bytes=reply.up_bytes, n_updates=reply.answer.n_updates)
            return reply
        log_event("order.failed", level=logging.WARNING, reason=failure.reason, detail=failure.detail)
        return failure

    async def _send_order(self, edge: int, name: str) -> EdgeReply:
        body = await self.thread.run(self._build_order, edge, self.round_map.placements[edge])
        return await self._deliver(edge, name, body)

    async def _deliver(self, edge: int, name: str, body: codec.Body) -> EdgeReply:
        placement = self.round_map.placements[edge]
        log_event("order.sent", kind=self.kind, bytes=body.n_bytes)
        key = order_key("rounds", self.run_id, self.round_no, edge)
        reply = await self.edges.run_round(name, self.experiment, body, placement, self.placement.loads(), key)
        return await run_beside(self._checked, edge, reply)  # of several edges at once

    def _build_order(self, edge: int, placement: EdgePlacement) -> codec.Body:
        before = self.checkpoint
        seats = self._seats_at(edge)
        hosted = self.experiment.population.seats.among(placement.seats - NumberSet(before.retired))
        order = RoundOrder[Any](
            run_id=self.run_id,
            round_no=self.round_no,
            spec=self.experiment.spec,
            population=self.experiment.population.digest,
            placement=codec.digest_of(canonical(placement).encode()),
            phase=self.ctx.phase,
            kind=self.kind,
            n_clients=self.ctx.n_clients,
            edge=edge,
            base=before.edge_bases.get(edge),
            bases={seat: version for seat, version in before.bases.items() if seat in seats},
            retired={seat: why for seat, why in before.retired.items() if seat in seats},
            clock_s=self.clock_s,
            broadcast=self.coded(self.hooks.broadcast(self.ctx, before.state, edge, hosted)),
        )
        return codec.encode(order)

    def _seats_at(self, edge: int) -> NumberSet:
        """The seats that visit an edge, and that of its own worker."""
        return self.round_map.seats_at(edge) | self.experiment.population.workers_of(edge)

    def _checked(self, edge: int, reply: EdgeReply) -> EdgeReply:
        """The reply with its update decoded; refuses an answer that its edge cannot have formed: see `AnswerChecks`."""
        newest = max(self.round_no, self.checkpoint.edge_bases.get(edge, Version(0)).round_no)
        answer = reply.answer.model_copy(update={"update": decoded(reply.answer.update)})
        AnswerChecks(self.experiment, self.ctx.at(edge=edge, round_no=newest), edge, self._seats_at(edge)).check(answer)
        return replace(reply, answer=answer)

    # ---- the state after the round

    def _add_up(self, answers: EdgeReplies) -> Accumulator:
        """The sum of all answers. One that cannot be added becomes a failure of its edge."""
        replies = answers.replies
        total = Accumulator(self.experiment.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes)
        for edge in sorted(replies):
            try:
                add_answer(total, replies[edge].answer)
                replies[edge] = replies[edge].without_update()
            except StrataError as error:
                del replies[edge]
                detail = f"{self.round_map.edges[edge]}: {error.detail}"
                answers.failed[edge] = Failure(edge=edge, reason=error.code, detail=detail)
        return total

    def _aggregate(self, total: Accumulator) -> Any:
        """The algorithm's state after the round: unchanged by an evaluation, and where no update came."""
        state = self.checkpoint.state
        return state if self.kind == "evaluate" else aggregated(self.experiment, self.ctx, state, total)

    async def _written(self, checkpoint: Checkpoint[Any]) -> str:
        """The digest of the state's file; an evaluation leaves the state as it was."""
        return await self.write(checkpoint) if self.kind == "train" else ""

    def _checkpoint_after(self, state: Any, answers: EdgeReplies) -> Checkpoint[Any]:
        before = self.checkpoint
        if self.kind == "evaluate":
            return before
        bases, edge_bases, retired = dict(before.bases), dict(before.edge_bases), dict(before.retired)
        for edge, reply in answers.replies.items():
            bases |= reply.answer.bases
            retired |= reply.answer.retired
            edge_bases[edge] = reply.answer.base or Version(self.round_no)
        return Checkpoint[Any](round_no=self.round_no, state=state, bases=bases, edge_bases=edge_bases, retired=retired)

    def _recorder(self) -> Recorder:
        placement, retired = self.placement.placement, self.checkpoint.retired
        by_class = self.kind == "evaluate"
        return Recorder(self.experiment, self.round_map, placement, retired, self.ctx, self.clock_s, by_class)


def n_clients(experiment: Experiment, placement: PlacementManager, retired: Mapping[int, str]) -> int:
    """Number of training clients now: edges if edges are the clients, else taken seats that train."""
    if experiment.spec.client == "edge":
        return len(experiment.population.edges)
    taken, role = placement.placement.taken, experiment.population.role
    return placement.n_training - sum(role(seat) == "train" for seat in retired if seat in taken)


def add_answer(total: Accumulator, answer: RoundAnswer[Any], steps: int = 1) -> None:
    """Adds an edge's checked answer to a sum, with its staleness weight in steps; its tensors may be overwritten."""
    if answer.partial_sum is not None:
        total.merge(weighted(answer.partial_sum, steps), take=True, checked=True)
    elif answer.update is not None:
        total.add(answer.update, answer.n_samples, answer.n_updates, n_clients=_n_clients_of(answer), factor=steps)


def _n_clients_of(answer: RoundAnswer[Any]) -> int:
    """Number of devices behind an edge's update, late ones too: a mean says it; of its own update the visits do."""
    if answer.n_updates != 1:
        return answer.n_updates
    trained = {line.seat for line in answer.lines if line.outcome == "used" and line.n_samples}
    return len(trained) + sum(line.outcome == "used_late" for line in answer.lines)


def aggregated(experiment: Experiment, ctx: Context, state: Any, total: Accumulator) -> Any:
    """The algorithm's state after a round; unchanged where no update came."""
    kind, partial_sum = experiment.algorithm.update, total.result()
    mean = mean_of(partial_sum, kind, experiment.fixed_point, model=experiment.shapes)
    if mean is None:
        return state
    steps = weight_steps(experiment, ctx)
    staleness_weight = mean_staleness_weight(partial_sum, kind, steps) if steps > 1 else 1.0
    counted = ctx.at(n_updates=total.n_updates, n_samples=total.n_samples, staleness_weight=staleness_weight)
    return experiment.algorithm.cloud.aggregate(counted, state, mean)


def weight_steps(experiment: Experiment, ctx: Context) -> int:
    """Steps of the staleness weight 1 in the cloud's sum: sums that edges forward have been weighted by them too."""
    spec, algorithm = experiment.spec, experiment.algorithm
    means = spec.sends_means and can_be_mean(algorithm.update)
    forwarded = spec.sync.devices.asynchronous and not means and not algorithm.edge.forms_model(ctx.at(edge=0))
    return spec.sync.edges.staleness.scale * (spec.sync.devices.staleness.scale if forwarded else 1)


def model_and_figures(experiment: Experiment, ctx: Context, state: Any) -> tuple[TensorMap, dict[str, Any]]:
    """The global model (empty without one) and the algorithm's figures of a trained round."""
    hooks = experiment.algorithm.cloud
    return hooks.models(ctx, state).get("global", {}), hooks.figures(ctx, state)
