"""One round at an edge:

begin -> (select -> schedule -> dispatch -> visits -> admit [-> uploads] -> aggregate -> advance)* -> finish
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_server.rounds.agent_client import AgentClient
from edge_server.rounds.evaluation import Scores, own_scores
from edge_server.rounds.late_updates import LateUpdate, LateUpdateBuffer, add_late
from edge_server.rounds.real_clock import report_deadline, round_deadline
from edge_server.rounds.round_log import RoundLog
from edge_server.rounds.simulated_clock import EdgeClock, SimulatedFaults
from edge_server.rounds.twins import Twins
from edge_server.rounds.wave import Deadline, Refusal, VisitRequest, Wave
from edge_server.rounds.wave_timing import Cutoff, WaveTiming
from edge_server.rounds.workload import SharedWorkload, in_phase, left_out, require_quorum, too_late, without
from shared.core.errors import StrataError
from shared.core.records import Record, same_leaves
from shared.federation import scheduling, selection, visit_estimates
from shared.federation.aggregation import Accumulator, PartialSum, can_be_mean, mean_of, names_clients
from shared.federation.context import Context, EdgeView
from shared.federation.experiment import Experiment
from shared.federation.hooks import Verdict
from shared.federation.messages import Failure, RoundAnswer, RoundOrder, Task, WaveId
from shared.federation.population import Seat
from shared.runtime.logs import log_event
from shared.runtime.worker import Worker
from shared.simulation.cost_model import LinkUse, link_cost
from shared.storage.states import Version


@dataclass
class EdgeRound:
    """A round of one home, from its order to its answer.

    Attributes:
        state: the edge's state; None before its first round.
        stock: late updates that wait for their round.
        twins: of the home's workers.
        order_bytes: size of the order's body.
        fresh_state: the state is None although this home has been served before.
        deadline_s: of the present edge round, on the clock of `book.simulated_s`.
        wall_deadline: with `clock: real`, the same in this world.
    """

    experiment: Experiment
    order: RoundOrder[Any]
    agents: AgentClient
    worker: Worker
    state: Any
    late_updates: LateUpdateBuffer
    twins: Twins
    order_bytes: int
    fresh_state: bool = False
    deadline_s: float = math.inf
    wall_deadline: Deadline = field(default_factory=Deadline)

    def __post_init__(self) -> None:
        order, members = self.order, self.experiment.population
        self.ctx: Context = self.experiment.ctx(
            phase=order.phase, round_no=order.round_no, n_clients=order.n_clients, edge=order.edge
        )
        self.hooks = self.experiment.algorithm.edge
        self.log = RoundLog(self.experiment, order.round_no)
        down = link_cost(members.edges[order.edge].link, LinkUse(down_bytes=self.order_bytes), self.ctx.seed)
        self.began_s = order.clock_s + down.down_s
        self.clock = EdgeClock(
            self.experiment, order.edge, self.agents.placement.profiles, order.round_no, self.began_s
        )
        self.seats = [self.clock.seat(seat.number) for seat in members.seats if self._takes_part(seat)]
        self.trainers = [seat for seat in self.seats if seat.role != "held_out"]

    def _takes_part(self, seat: Seat) -> bool:
        own_worker = seat.role == "worker" and seat.home_edge == self.order.edge
        return (own_worker or seat.number in self.agents.placement.addresses) and seat.number not in self.order.retired

    # ---- the round

    async def run(self) -> RoundAnswer[Any]:
        """Train, or only evaluate, as the order says."""
        if self.state is None:
            self.state = self.hooks.init(self.ctx)
        begun = await self.worker.run(self.hooks.begin, self.ctx, self.state, self.order.broadcast)
        self.state = begun.state
        if self.order.kind == "evaluate":
            return await self._evaluate_all()
        folded = None
        for edge_round in range(begun.edge_rounds * scheduling.n_syncs(self.ctx, self.trainers)):
            folded = await self._edge_round(self.ctx.at(edge_round=edge_round), through=begun.through)
        return await self._finish(folded)

    async def _edge_round(self, ctx: Context, *, through: bool) -> PartialSum:
        """Waves until nobody is visited again; the exact sum of what they brought."""
        fold = Accumulator(self.experiment.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes)
        self.deadline_s = self.log.simulated_s + (ctx.spec.round_deadline_s or math.inf)
        self.wall_deadline = round_deadline(ctx.spec)
        chosen = self._active(self._select(ctx) if self.trainers else [])
        log_event("edge_round.begun", edge_round=ctx.edge_round, seats=len(chosen))
        while chosen or ctx.wave == 0:
            ctx, done = await self._all_shares(ctx, chosen, fold)
            if not through:
                await self.worker.run(self._aggregate, ctx, fold)
            outcomes = [done.outcomes[seat] for seat in sorted(done.tasks)]
            step = await self.worker.run(self.hooks.advance, ctx, self.state, done.tasks, outcomes)
            self.state = step.state
            self.log.retired |= step.retire
            chosen = self._active(step.again)
            ctx = ctx.at(wave=ctx.wave + 1)
        return fold.result()

    async def _all_shares(self, ctx: Context, chosen: list[Seat], fold: Accumulator) -> tuple[Context, SharedWorkload]:
        """A wave; where shares are planned, further ones until each sample was trained on, or nobody is left."""
        shares, all_chosen = SharedWorkload(), chosen
        while True:
            view, schedule = self._view(ctx, chosen, shares), self.hooks.schedule
            tasks = await self.worker.run(schedule, ctx, self.state, self._now(chosen), view) if chosen else {}
            tasks = in_phase(self.experiment, ctx, tasks)
            wave = await self._wave(ctx, tasks | self._held_out_work(ctx), fold)
            shares.take(tasks, wave)
            if not ctx.spec.plans:
                require_quorum(self.experiment, self.order.edge, wave, tasks)
                return ctx, shares
            out_of_time = self.log.simulated_s >= self.deadline_s
            others = [] if out_of_time else shares.next(all_chosen, self.log.retired)
            if not others:
                shares.require(self.order.edge, ctx.spec.quorum_of(shares.n_task), out_of_time=out_of_time)
                return ctx, shares
            chosen, ctx = others, ctx.at(wave=ctx.wave + 1)

    def _view(self, ctx: Context, chosen: list[Seat], shares: SharedWorkload) -> EdgeView:
        """What a schedule may use: losses, twins as they are at this instant, and the samples that are left."""
        self.clock = self.clock.at(self.began_s + self.log.simulated_s)
        if not ctx.spec.keeps_twins:
            return EdgeView(self.late_updates.losses)
        new = shares.left is None and ctx.wave == 0
        self.twins.look(self.clock, [seat.number for seat in chosen], new_edge_round=new)
        return EdgeView(self.late_updates.losses, self.twins.known, shares.left)

    def _now(self, chosen: list[Seat]) -> list[Seat]:
        """Seats as they are at this instant."""
        return [self.clock.seat(seat.number) for seat in chosen]

    def _select(self, ctx: Context) -> list[int]:
        return self.hooks.select(ctx, self.state, self.trainers, EdgeView(self.late_updates.losses))

    def _aggregate(self, ctx: Context, fold: Accumulator) -> None:
        mean = mean_of(
            fold.result(), self.experiment.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes
        )
        if mean is not None:
            counted = ctx.at(n_updates=fold.n_updates, n_samples=fold.n_samples)
            self.state = self.hooks.aggregate(counted, self.state, mean)

    async def _wave(self, ctx: Context, tasks: Mapping[int, Task], fold: Accumulator) -> Wave:
        """Visit, admit, fetch; note what came of each seat."""
        predicted = self.twins.predict(ctx, self.clock, tasks)
        gate, hold = self._gate(ctx, predicted), self.experiment.algorithm.reports or ctx.spec.may_refuse
        stage = WaveId(run_id=self.order.run_id, round_no=ctx.round_no, edge_round=ctx.edge_round, wave=ctx.wave)
        asked_for, tasks = tasks, self._partial(ctx, tasks, gate)
        skipped, overdue = left_out(ctx, tasks), too_late(tasks, gate)
        at_s = self.began_s + self.log.simulated_s
        works_now = without(tasks, [*skipped, *overdue])
        fates = await self.worker.run(self.clock.faults, ctx, works_now, at_s, self.late_updates.busy(at_s))
        asked = await self.worker.run(self._asked, ctx, without(works_now, [*fates.off, *fates.busy]))
        visited = [item for item in asked if item.seat not in fates.dropped]
        answers_by = report_deadline(ctx.spec, self.wall_deadline)
        wave = await self.agents.visit(stage, visited, fold, hold=hold, deadline=answers_by)
        wave.shares = {
            seat: visit_estimates.share_of(ctx, tasks[seat], asked_for[seat], self.clock.seat(seat)) for seat in tasks
        }
        wave.predicted, wave.began_s = predicted, at_s - self.order.clock_s
        wave.moved_bytes = {item.seat: item.moved_bytes for item in asked if item.moved_bytes}
        wave.not_asked(skipped, self.order.edge, "left_out", "the spec's losses say so")
        wave.not_waited_for(overdue, Refusal("late", 0.0))
        dropping = [item for item in asked if item not in visited]
        await self.worker.run(self._spare, wave, fates, dropping, at_s, hold)
        arrivals = WaveTiming(self.clock, self.agents, gate, ctx, tasks, fates)
        await self.worker.run(arrivals.answers, wave)
        verdicts = await self._settle(ctx, wave, arrivals, fold) if hold else {}
        lines = await self.worker.run(self.log.note, wave, tasks, verdicts, arrivals)
        await self.worker.run(self.twins.note, ctx, wave, arrivals, lines)
        self.late_updates.hear(wave)
        await self.worker.run(self._use_late, ctx, fold)
        await self.worker.run(self._keep_late, wave, arrivals, at_s)
        return wave

    def _use_late(self, ctx: Context, fold: Accumulator) -> None:
        """Add late updates of earlier rounds that came until the wave ended; one that does not fit is a failure."""
        here, end_s = {seat.number for seat in self.trainers}, self.began_s + self.log.simulated_s
        for item in self.late_updates.take(
            end_s, ctx.round_no, here, self.order.retired.keys() | self.log.retired.keys()
        ):
            try:
                self.log.note_late(add_late(ctx, item, fold))
            except StrataError as error:
                detail = f"its update of round {item.round_no}: {error.detail}"[:500]
                seat, edge = item.contribution.seat, self.order.edge
                self.log.failures.append(Failure(seat=seat, edge=edge, reason=error.code, detail=detail))

    def _keep_late(self, wave: Wave, arrivals: WaveTiming, at_s: float) -> None:
        """Keep the late updates of a wave that began at `at_s`."""
        for seat, contribution in sorted(wave.late.items()):
            arrives_s = at_s + arrivals.paid(wave, seat).cost.simulated_s
            self.late_updates.add(
                LateUpdate[Any](round_no=self.order.round_no, arrives_s=arrives_s, contribution=contribution)
            )

    def _gate(self, ctx: Context, predicted: Mapping[int, tuple[float, float]]) -> Cutoff:
        """Waves after the first have what is left until the deadline, and want all that the algorithm asked again.

        With `overrun` the first wave of planned shares ends some time after it was planned to.
        """
        beyond = ctx.spec.overselection > 0 and ctx.wave == 0
        left_s, n_wanted = self.deadline_s - self.log.simulated_s, selection.n_wanted(ctx, self.trainers)
        if ctx.spec.overrun is not None and ctx.wave == 0 and predicted:
            left_s = min(left_s, ctx.spec.overrun * max(mean_s for mean_s, _ in predicted.values()))
        return Cutoff(left_s, n_wanted if beyond else None, ctx.spec.report_deadline_s or math.inf)

    def _partial(self, ctx: Context, tasks: Mapping[int, Task], gate: Cutoff) -> Mapping[int, Task]:
        """The works, where the spec says so cut to what there is time for: until the edge round ends, or decides."""
        if not ctx.spec.partial_work:
            return tasks
        found = {
            s: visit_estimates.partial(ctx, task, self.clock.seat(s), gate.deadline_s) for s, task in tasks.items()
        }
        if gate.report_s == math.inf:
            return found
        return {
            s: visit_estimates.partial(ctx, task, self.clock.seat(s), gate.report_s, update=False)
            for s, task in found.items()
        }

    async def _settle(self, ctx: Context, wave: Wave, arrivals: WaveTiming, fold: Accumulator) -> dict[int, Verdict]:
        """Let the algorithm decide about those who came in time, fetch what is admitted."""
        admitted = [s for s, found in wave.outcomes.items() if found.held_bytes and s not in wave.refused]
        verdicts: dict[int, Verdict] = {}
        if self.experiment.algorithm.reports:
            verdicts = await self._admit(ctx, wave)
            admitted = [seat for seat, verdict in verdicts.items() if verdict.upload]
            await self.worker.run(arrivals.updates, wave, admitted)
        in_time = [seat for seat in sorted(admitted) if seat not in wave.refused]
        late = sorted(wave.kept_for_later())
        await self.agents.fetch(wave, in_time, fold, late=late, deadline=self.wall_deadline)
        return verdicts

    def _spare(self, wave: Wave, fates: SimulatedFaults, dropping: list[VisitRequest], at_s: float, hold: bool) -> None:
        """Note who is off, and who has received its order and drops the visit; neither is asked in this world."""
        for seat in fates.off:
            wave.not_asked([seat], self.order.edge, "unavailable", f"the device is off at second {at_s:.3f}")
        for seat, share in fates.dropped.items():
            wave.not_asked([seat], self.order.edge, "dropped", f"the device dropped after {share:.1%} of its work")
        for seat, until_s in fates.busy.items():
            detail = f"still at work on its late update until second {until_s:.3f}"
            wave.not_asked([seat], self.order.edge, "busy", detail)
        self.agents.charge_orders(wave, dropping, hold=hold)
        self.log.wait_for([on_s for on_s in (*fates.off.values(), *fates.busy.values()) if on_s is not None])

    def _asked(self, ctx: Context, tasks: Mapping[int, Task]) -> list[VisitRequest]:
        """The visits of a wave; equal messages become one object, so that they are coded and travel once."""
        asked: list[VisitRequest] = []
        coded = self.experiment.compressor.messages()
        distinct: list[tuple[Any, Any]] = []  # as dispatched, and as it travels
        for number in sorted(tasks):
            message = self.hooks.dispatch(ctx, self.state, self.clock.seat(number))
            known = [sent for other, sent in distinct if same_leaves(other, message)]
            if not known:
                known = [coded(message)]
                distinct.append((message, known[0]))
            base = self.log.bases.get(number, self.order.bases.get(number))
            moved = self.experiment.moved_bytes(number, tasks[number])
            asked.append(VisitRequest(number, tasks[number], known[0], base, moved))
        return asked

    async def _admit(self, ctx: Context, wave: Wave) -> dict[int, Verdict]:
        answered = sorted((s, outcome) for s, outcome in wave.outcomes.items() if s not in wave.refused)
        reports = {seat: outcome.report for seat, outcome in answered if outcome.report is not None}
        admission = await self.worker.run(self.hooks.admit, ctx, self.state, reports)
        self.state = admission.state
        return admission.verdicts

    async def _finish(self, folded: PartialSum | None) -> RoundAnswer[Any]:
        received, mine, own_on = await self._own_scores()
        n_own = self.log.n_samples
        finish = await self.worker.run(self.hooks.finish, self.ctx.at(n_samples=n_own), self.state)
        self.state, update = finish.state, finish.update
        n_updates, n_samples = (folded.n_updates, folded.n_samples) if folded else (0, 0)
        if update is not None:
            n_updates, n_samples, folded = int(self.log.n_used > 0), n_own, None
        elif folded and self.experiment.spec.edge_upload == "mean" and can_be_mean(self.experiment.algorithm.update):
            update, folded = await self.worker.run(self._mean, folded), None
        return RoundAnswer(
            edge=self.order.edge,
            partial_sum=folded if n_updates else None,
            update=update if n_updates or (update is not None and names_clients(update)) else None,
            n_updates=n_updates,
            n_samples=n_samples,
            base=Version(self.order.round_no),
            received=received,
            own=mine,
            own_on=own_on,
            figures=finish.figures,
            **self.log.record(),
            fresh_state=self.fresh_state,
        )

    def _mean(self, folded: PartialSum) -> Record | None:
        return mean_of(
            folded, self.experiment.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes
        )

    # ---- evaluation

    def _held_out_work(self, ctx: Context) -> dict[int, Task]:
        if ctx.edge_round or ctx.wave or not visit_estimates.evaluation_due(ctx):
            return {}
        return {seat.number: self._only_evaluate() for seat in self.seats if seat.role == "held_out"}

    async def _evaluate_all(self) -> RoundAnswer[Any]:
        """Every seat evaluates; with `client: edge` the edge does, for its devices."""
        tasks = {}
        if self.experiment.spec.client == "device":
            tasks = {seat.number: self._only_evaluate() for seat in self.seats}
        fold = Accumulator(self.experiment.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes)
        stage = WaveId(run_id=self.order.run_id, round_no=self.order.round_no)
        asked = await self.worker.run(self._asked, self.ctx, tasks)
        wave = await self.agents.visit(stage, asked, fold, hold=False)
        arrivals = WaveTiming(self.clock, self.agents, Cutoff(), self.ctx, tasks)
        await self.worker.run(self.log.note, wave, tasks, {}, arrivals)
        received, mine, own_on = await self._own_scores()
        return RoundAnswer(
            edge=self.order.edge,
            base=self.order.base,
            received=received,
            own=mine,
            own_on=own_on,
            **self.log.record(),
            fresh_state=self.fresh_state,
        )

    def _only_evaluate(self) -> Task:
        return Task(kind="evaluate", batch_size=self.experiment.spec.batch_size)

    async def _own_scores(self) -> Scores:
        """The edge's own evaluation, where the edge is the client and the round is due."""
        due = self.order.kind == "evaluate" or visit_estimates.evaluation_due(self.ctx)
        if self.experiment.spec.client != "edge" or not due:
            return None, None, {}
        stop = self.agents.stop.is_set
        return await self.worker.run(own_scores, self.experiment, self.ctx, self.state, self.order.edge, stop)

    # ---- bookkeeping

    def _active(self, numbers: Sequence[int]) -> list[Seat]:
        known = {seat.number: seat for seat in self.trainers}
        return [known[number] for number in sorted(set(numbers)) if number in known and number not in self.log.retired]
