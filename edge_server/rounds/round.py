"""One round at an edge.

begin -> (edge round)* -> finish
edge round: select -> (schedule -> wave -> aggregate -> advance)*
wave: plan -> visit -> decide -> fetch -> record -> update the edge's memory

The algorithm's hook `dispatch` runs within plan, its hook `admit` within decide. A schedule that divides samples among
the seats runs several waves before the algorithm aggregates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge_server.rounds.agent_client import AgentClient
from edge_server.rounds.collected_samples import CollectedSamples
from edge_server.rounds.evaluation import (
    NO_SCORES,
    EdgeScores,
    edge_evaluates,
    evaluation_dispatch,
    held_out_tasks,
    own_scores,
)
from edge_server.rounds.real_clock import report_deadline, round_deadline
from edge_server.rounds.round_log import RoundLog
from edge_server.rounds.shared_workload import SharedWorkload, lost_requests, meets_quorum
from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.stale_updates import LateUpdate, LateUpdateBuffer, add_late
from edge_server.rounds.twins import Twins
from edge_server.rounds.visit_requests import (
    apply_phase_kind,
    cut_to_time,
    reachable,
    seats_left_out,
    simulated_failures,
    visit_requests,
    without,
)
from edge_server.rounds.wave import Cutoff, Deadline, Dispatch, Wave, WaveDecision, failures_of
from edge_server.rounds.wave_timing import WaveTiming
from shared.core.errors import StrataError
from shared.core.number_sets import NumberSet
from shared.core.records import Record
from shared.core.tensor_records import TensorMap
from shared.federation import scheduling, selection, visit_estimates
from shared.federation.aggregation import Accumulator, PartialSum, can_be_mean, mean_of, names_clients
from shared.federation.context import Context, EdgeView
from shared.federation.experiment import Experiment
from shared.federation.hooks import Begin
from shared.federation.messages import Failure, RoundAnswer, RoundOrder, Task, WaveId
from shared.federation.population import Seat
from shared.run_records.visits import VisitRecord
from shared.runtime.compute_thread import ComputeThread
from shared.runtime.logs import log_event
from shared.simulation.cost_model import LinkUse, link_cost
from shared.storage.states import Version


@dataclass
class EdgeRound:
    """A round of one edge, from its order to its answer.

    Attributes:
        experiment: of the run.
        order: of the cloud.
        agents: the client to the agents that host the seats.
        thread: the thread that computes.
        state: the algorithm's edge state; None before the first round.
        late_updates: those of earlier rounds; receives those of this one.
        twins: of the edge's devices.
        order_bytes: size of the order's body.
        fresh_state: whether the state is None although this edge has been served before.
        collected: samples that devices collect, on their way, where they travel.
        residual: the error of compressed updates to the cloud, by field and tensor: of earlier rounds, then with this.
        deadline_s: of the present edge round, on the clock of `log.simulated_s`.
        wall_deadline: with `clock: real`, the same on the wall clock.
    """

    experiment: Experiment
    order: RoundOrder[Any]
    agents: AgentClient
    thread: ComputeThread
    state: Any
    late_updates: LateUpdateBuffer
    twins: Twins
    order_bytes: int
    fresh_state: bool = False
    collected: CollectedSamples = field(default_factory=CollectedSamples)
    residual: TensorMap = field(default_factory=dict)
    deadline_s: float = math.inf
    wall_deadline: Deadline = field(default_factory=Deadline)

    def __post_init__(self) -> None:
        order, population = self.order, self.experiment.population
        self.ctx: Context = self.experiment.ctx(
            phase=order.phase, round_no=order.round_no, n_clients=order.n_clients, edge=order.edge
        )
        self.algorithm, self.hooks = self.experiment.algorithm, self.experiment.algorithm.edge
        self.log = RoundLog(self.experiment, order.round_no, order.clock_s)
        down = link_cost(population.edges[order.edge].link, LinkUse(down_bytes=self.order_bytes), self.ctx.seed)
        self.began_s = order.clock_s + down.down_s
        placement = self.agents.placement
        self.clock = EdgeClock(self.experiment, order.edge, placement.profile, order.round_no, self.began_s)
        visiting = (placement.seats | population.workers_of(order.edge)) - NumberSet(order.retired)
        self._take_seats(visiting, self.twins.listen(self.clock, visiting - population.held_out))

    def _take_seats(self, numbers: NumberSet, clock: EdgeClock) -> None:
        """Makes the seats as the edge knows them at an instant."""
        self.clock = clock
        self.seats = self.experiment.population.seats_of(numbers, clock.seat)
        self.trainers = self.seats.among(numbers - self.experiment.population.held_out)

    # ---- the round

    async def run(self) -> RoundAnswer[Any]:
        """Trains, or only evaluates, as the order says."""
        if self.state is None:
            self.state = self.hooks.init(self.ctx)
        begun = await self.thread.run(self.hooks.begin, self.ctx, self.state, self.order.broadcast)
        self.state = begun.state
        if self.order.kind == "evaluate":
            return await self._evaluate()
        return await self._finish(await self._train(begun))

    def abandon(self) -> None:
        """Ends what would go on beyond a round that has failed."""

    async def _train(self, begun: Begin[Any]) -> PartialSum | None:
        """Runs the edge rounds; returns the sum of the last one."""
        if self.ctx.spec.collected == "travels":
            await self.thread.run(self._gather_samples)
        partial_sum = None
        for edge_round in range(begun.edge_rounds * scheduling.n_syncs(self.ctx.spec, self.trainers)):
            partial_sum = await self._run_edge_round(self.ctx.at(edge_round=edge_round), forward_sum=begun.forward_sum)
        return partial_sum

    def _gather_samples(self) -> None:
        """Lets devices send what they have collected; waits if the edge has no samples yet."""
        devices = list(self.trainers.numbers - self.experiment.population.workers_of(self.order.edge))
        at_s = self.collected.begin_s(self.clock, self.ctx, devices)
        self.log.simulated_s = at_s - self.began_s
        here, busy = self.collected.at_edge(devices, at_s), self.collected.link_free_s(devices)
        self._take_seats(self.seats.numbers, replace(self.clock.at(at_s), at_edge=here, link_free_s=busy))
        if self.ctx.spec.keeps_twins:
            self.twins.spend(self.collected.energy_j)

    async def _run_edge_round(self, ctx: Context, *, forward_sum: bool) -> PartialSum:
        """Runs waves until the algorithm visits no seat again; returns the exact sum of their updates."""
        accumulator = self._accumulator()
        self.deadline_s = self.log.simulated_s + (ctx.spec.round_deadline_s or math.inf)
        self.wall_deadline = round_deadline(ctx.spec)
        chosen = self._active(self._select(ctx) if self.trainers else [])
        log_event("edge_round.begun", edge_round=ctx.edge_round, seats=len(chosen))
        while chosen or ctx.wave == 0:
            ctx, done = await self._run_waves(ctx, chosen, accumulator)
            if not forward_sum:
                await self.thread.run(self._aggregate, ctx, accumulator)
            chosen = await self._advance(ctx, done)
            ctx = ctx.at(wave=ctx.wave + 1)
        return accumulator.result()

    def _select(self, ctx: Context) -> list[int]:
        return self.hooks.select(ctx, self.state, self.trainers, EdgeView(self.late_updates.losses))

    async def _advance(self, ctx: Context, done: SharedWorkload) -> list[Seat]:
        """Lets the algorithm retire seats; returns the seats that it visits again in this edge round."""
        outcomes = [done.outcomes[seat] for seat in sorted(done.tasks)]
        step = await self.thread.run(self.hooks.advance, ctx, self.state, done.tasks, outcomes)
        self.state = step.state
        self.log.retired |= step.retire
        return self._active(step.revisit)

    def _active(self, numbers: Sequence[int]) -> list[Seat]:
        """The seats of these numbers that train here and are not retired."""
        known, retired = self.trainers.numbers, self.log.retired
        return [
            self.trainers.make(number) for number in sorted(set(numbers)) if number in known and number not in retired
        ]

    async def _run_waves(
        self, ctx: Context, chosen: list[Seat], accumulator: Accumulator
    ) -> tuple[Context, SharedWorkload]:
        """A wave; with a schedule that plans, further ones until each sample was trained on or no seat is left."""
        work, all_chosen = SharedWorkload(), chosen
        while True:
            tasks = await self._schedule(ctx, chosen, work)
            tested = held_out_tasks(ctx, self.experiment.population, self.seats.numbers, len(tasks))
            wave = await self._run_wave(ctx, tasks | tested, accumulator)
            work.add_wave(tasks, wave)
            if not ctx.spec.plans:
                self._judge(*lost_requests(wave, tasks), first=ctx.wave == 0)
                return ctx, work
            out_of_time = self.log.simulated_s >= self.deadline_s
            others = [] if out_of_time else work.next_seats(all_chosen, self.log.retired)
            if not others:
                work.require_samples(self.order.edge, ctx.spec.quorum_of(work.n_task), out_of_time=out_of_time)
                return ctx, work
            chosen, ctx = others, ctx.at(wave=ctx.wave + 1)

    def _judge(self, n_answered: int, lost: Sequence[Failure], *, first: bool) -> None:
        """Notes whether too few visits were answered; ends the round where that alone decides."""
        if not meets_quorum(self.ctx.spec, self.order.edge, n_answered, lost, first=first):
            self.log.below_quorum = True

    async def _schedule(self, ctx: Context, chosen: list[Seat], work: SharedWorkload) -> dict[int, Task]:
        """The tasks that the algorithm gives to the chosen seats."""
        view = self._schedule_view(ctx, chosen, work)
        seats = [self.clock.seat(seat.number) for seat in chosen]
        tasks = await self.thread.run(self.hooks.schedule, ctx, self.state, seats, view) if seats else {}
        return apply_phase_kind(self.experiment, ctx, tasks)

    def _schedule_view(self, ctx: Context, chosen: list[Seat], work: SharedWorkload) -> EdgeView:
        """What a schedule may use: losses, twins as they are at this instant, and the samples that are left."""
        self.clock = self.clock.at(self.began_s + self.log.simulated_s)
        if not ctx.spec.keeps_twins:
            return EdgeView(self.late_updates.losses)
        new = work.remaining is None and ctx.wave == 0
        self.clock = self.twins.refresh(self.clock, [seat.number for seat in chosen], new_edge_round=new)
        return EdgeView(self.late_updates.losses, self.twins.known, work.remaining)

    def _accumulator(self) -> Accumulator:
        return Accumulator(self.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes)

    def _mean(self, partial_sum: PartialSum) -> Record | None:
        return mean_of(partial_sum, self.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes)

    def _aggregate(self, ctx: Context, accumulator: Accumulator) -> None:
        mean = self._mean(accumulator.result())
        if mean is not None:
            counted = ctx.at(n_updates=accumulator.n_updates, n_samples=accumulator.n_samples)
            self.state = self.hooks.aggregate(counted, self.state, mean)

    # ---- a wave

    async def _run_wave(self, ctx: Context, tasks: Mapping[int, Task], accumulator: Accumulator) -> Wave:
        """Visits seats and sums the updates that are in time and admitted."""
        dispatch = await self.thread.run(self._plan, ctx, tasks)
        replies = await self.agents.visit(dispatch, accumulator)
        timing = WaveTiming(self.clock, self.agents, ctx, dispatch, replies)
        decision = await self._decide(ctx, timing)
        await self.agents.fetch(dispatch, replies, decision, accumulator, self.wall_deadline)
        wave = Wave(dispatch, replies, decision)
        await self.thread.run(self._record, ctx, wave, timing, accumulator)
        return wave

    def _record(self, ctx: Context, wave: Wave, timing: WaveTiming, accumulator: Accumulator) -> None:
        visits = self.log.record_wave(wave, timing)
        self._update_edge_memory(ctx, wave, timing, visits, accumulator)

    def _plan(self, ctx: Context, tasks: Mapping[int, Task]) -> Dispatch:
        """Decides which visits are requested: all that are in time, not left out and not prevented by faults."""
        edge, at_s = self.order.edge, self.began_s + self.log.simulated_s
        predicted = self.twins.predict(ctx, self.clock, tasks)
        cutoff = self._cutoff(ctx, predicted)
        cut = cut_to_time(ctx, self.clock, tasks, cutoff)
        lost = seats_left_out(ctx, cut)
        begun = without(cut, [*lost, *cutoff.too_late(cut)])
        faults = self.clock.faults(ctx, begun, at_s, self.late_updates.busy(at_s))
        begun = without(begun, [*faults.off, *faults.busy])
        base_versions = {**self.order.bases, **self.log.base_versions}
        requests = visit_requests(self.experiment, ctx, self.state, self.clock, base_versions, begun)
        finishing = [item for item in requests if item.seat not in faults.dropped]
        sendable, missing = reachable(self.experiment, self.agents.placement, edge, finishing)
        return Dispatch(
            WaveId(run_id=self.order.run_id, round_no=ctx.round_no, edge_round=ctx.edge_round, wave=ctx.wave),
            cut,
            sendable,
            dropping=[item for item in requests if item.seat in faults.dropped],
            at_s=at_s,
            cutoff=cutoff,
            faults=faults,
            failures=[
                *missing,
                *failures_of(lost, edge, "left_out", "left out by the spec (`losses`)"),
                *simulated_failures(faults, edge, at_s),
            ],
            hold=self.algorithm.reports or ctx.spec.may_refuse,
            deadline=report_deadline(ctx.spec, self.wall_deadline),
            shares={s: visit_estimates.share_of(ctx, cut[s], tasks[s], self.clock.seat(s)) for s in cut},
            predicted=predicted,
        )

    def _cutoff(self, ctx: Context, predicted: Mapping[int, tuple[float, float]]) -> Cutoff:
        """When the edge stops waiting in a wave: waves after the first have what is left until the deadline, and want
        all answers.

        With `overrun`, the first wave of planned shares ends at this multiple of its longest predicted visit.
        """
        beyond = ctx.spec.overselection > 0 and ctx.wave == 0
        left_s, n_wanted = self.deadline_s - self.log.simulated_s, selection.n_wanted(ctx, self.trainers)
        if ctx.spec.overrun is not None and ctx.wave == 0 and predicted:
            left_s = min(left_s, ctx.spec.overrun * max(mean_s for mean_s, _ in predicted.values()))
        return Cutoff(left_s, n_wanted if beyond else None, ctx.spec.report_deadline_s or math.inf)

    async def _decide(self, ctx: Context, timing: WaveTiming) -> WaveDecision:
        """Which answers are in time, and which of their updates the algorithm admits by their reports."""
        decision = await self.thread.run(timing.decide)
        if not self.algorithm.reports:
            return decision
        in_time = sorted((s, found) for s, found in timing.replies.outcomes.items() if s not in decision.refused)
        reports = {seat: found.report for seat, found in in_time if found.report is not None}
        admission = await self.thread.run(self.hooks.admit, ctx, self.state, reports)
        self.state = admission.state
        return await self.thread.run(timing.admit, decision, admission.verdicts)

    def _update_edge_memory(
        self,
        ctx: Context,
        wave: Wave,
        timing: WaveTiming,
        visits: Sequence[VisitRecord],
        accumulator: Accumulator,
    ) -> None:
        """Updates twins, losses and late updates: those of earlier rounds that have arrived are added to the sum."""
        self.twins.observe_wave(ctx, self.clock, wave, visits)
        self.late_updates.record_losses(wave)
        self._add_late_updates(ctx, accumulator)
        for seat, contribution in sorted(wave.replies.late.items()):
            arrives_s = wave.dispatch.at_s + timing.cost_of_visit(wave.decision, seat).cost.simulated_s
            item = LateUpdate[Any](round_no=self.order.round_no, arrives_s=arrives_s, contribution=contribution)
            self.late_updates.add(item)

    def _add_late_updates(self, ctx: Context, accumulator: Accumulator) -> None:
        """Adds late updates of earlier rounds to the sum; one that does not fit is a failure."""
        seats, end_s = self.trainers.numbers, self.began_s + self.log.simulated_s
        retired = self.order.retired.keys() | self.log.retired.keys()
        for item in self.late_updates.take_arrived(end_s, ctx.round_no, seats, retired):
            try:
                self.log.record_late_update(add_late(ctx, item, accumulator))
            except StrataError as error:
                detail = f"its update of round {item.round_no}: {error.detail}"
                self.log.failures += failures_of([item.contribution.seat], self.order.edge, error.code, detail)

    # ---- the answer

    async def _finish(self, partial_sum: PartialSum | None) -> RoundAnswer[Any]:
        """The answer of a training round: the algorithm's own update, else the sum or mean of the seats' updates."""
        scores, n_own = await self._scores(), self.log.n_samples
        finish = await self.thread.run(self.hooks.finish, self.ctx.at(n_samples=n_own), self.state)
        self.state, update = finish.state, finish.update
        n_updates, n_samples = (partial_sum.n_updates, partial_sum.n_samples) if partial_sum else (0, 0)
        ends = self.clock.at(self.began_s + self.log.simulated_s)
        telemetry_bytes, telemetry_j = self.twins.end_round(ends, self.trainers.numbers)
        if update is not None:
            n_updates, n_samples, partial_sum = int(self.log.n_used > 0), n_own, None
        elif partial_sum and self.experiment.spec.sends_means and can_be_mean(self.algorithm.update):
            update, partial_sum = await self.thread.run(self._mean, partial_sum), None
        if update is not None and n_updates:
            coded = self.experiment.edge_compressor.update
            update, self.residual = await self.thread.run(coded, update, self.residual)
        return RoundAnswer(
            edge=self.order.edge,
            partial_sum=partial_sum if n_updates else None,
            update=update if n_updates or (update is not None and names_clients(update)) else None,
            n_updates=n_updates,
            n_samples=n_samples,
            base=Version(self.order.round_no),
            figures=finish.figures,
            collected_bytes=self.collected.n_bytes,
            collected_j=sum(self.collected.energy_j.values()),
            telemetry_bytes=telemetry_bytes,
            telemetry_j=telemetry_j,
            **scores._asdict(),
            **self.log.answer_fields(),
            fresh_state=self.fresh_state,
        )

    async def _evaluate(self) -> RoundAnswer[Any]:
        """The answer of a round in which every seat only evaluates."""
        seats = self.seats.numbers & self.experiment.population.test_clients
        known = (self.experiment, self.order, self.ctx, self.state, self.clock, self.agents.placement, seats)
        dispatch = await self.thread.run(evaluation_dispatch, *known)
        replies = await self.agents.visit(dispatch, self._accumulator())
        timing = WaveTiming(self.clock, self.agents, self.ctx, dispatch, replies)
        await self.thread.run(self.log.record_wave, Wave(dispatch, replies), timing)
        return RoundAnswer(
            edge=self.order.edge,
            base=self.order.base,
            **(await self._scores())._asdict(),
            **self.log.answer_fields(),
            fresh_state=self.fresh_state,
        )

    async def _scores(self) -> EdgeScores:
        """The edge's own evaluation, if it is a client and the evaluation is due."""
        if not edge_evaluates(self.ctx, self.order):
            return NO_SCORES
        stopped = self.agents.stop.is_set
        return await self.thread.run(own_scores, self.experiment, self.ctx, self.state, self.order.edge, stopped)
