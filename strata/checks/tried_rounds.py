"""A small federation in one process, without services: rounds of an algorithm, to watch what its hooks do.

The hooks are called in the order that `shared.federation.hooks.tiers` documents, and every message is encoded and
decoded on its way. All devices answer in time; there are no profiles, no faults and no compression.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.core.records import Record
from shared.federation.aggregation import Accumulator, PartialSum, mean_of
from shared.federation.context import Context, EdgeView
from shared.federation.experiment import Experiment
from shared.federation.messages import Contribution, Outcome, RoundOrder, Task, Visit, VisitOrder, WaveId
from shared.federation.population import Seat
from shared.federation.scheduling import n_syncs
from shared.federation.visits.visit import run_visits
from shared.storage.states import StateStore, Version
from shared.storage.states.files import FileStateStore
from shared.wire import codec
from strata.checks.monitor import CheckFailed, Monitor

RUN = "check"


@dataclass
class TriedRounds:
    """Rounds of an experiment.

    Attributes:
        experiment: with the algorithm that is tried.
        folder: for the states of devices.
        monitor: gets every record that is sent or kept, with its bytes.
        state: of the cloud; None before the first round.
        sent: the updates of each wave, in the order of seats.
    """

    experiment: Experiment
    folder: Path
    monitor: Monitor = field(default_factory=Monitor)
    state: Any = None
    sent: list[list[Contribution[Any]]] = field(default_factory=list)
    _edges: dict[int, Any] = field(default_factory=dict)
    _bases: dict[int, Version] = field(default_factory=dict)
    _retired: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.states: StateStore = FileStateStore(self.folder, fsync=False)

    def run(self) -> TriedRounds:
        """Runs all rounds of the spec's phases.

        Raises:
            CheckFailed: a visit fails.
            StrataError: a message or an update is not valid.
        """
        spec, population = self.experiment.spec, self.experiment.population
        n_clients = len(population.edges) if spec.client == "edge" else population.n_training
        for round_no in range(1, sum(phase.num_rounds for phase in self.experiment.phases) + 1):
            phase = self.experiment.phase_of(round_no).name
            self._round(self.experiment.ctx(phase=phase, round_no=round_no, n_clients=n_clients))
        return self

    def _round(self, ctx: Context) -> None:
        hooks, total = self.experiment.algorithm.cloud, self._accumulator()
        if self.state is None:
            self.state = self._kept(hooks.init(ctx, self.experiment.initial), self.experiment.algorithm.cloud_state)
        for edge in range(len(self.experiment.population.edges)):
            seats = [self.experiment.seat_in(seat.number, ctx.round_no) for seat in self._seats_of(edge)]
            order = self._order(ctx, edge, hooks.broadcast(ctx, self.state, edge, seats))
            answer, n_updates, n_samples = _Edge(self, ctx.at(edge=edge), seats).run(order.broadcast)
            if isinstance(answer, PartialSum):
                total.merge(answer)
            elif answer is not None:
                total.add(answer, n_samples, n_updates)
        mean = self._mean(total)
        if mean is not None:
            counted = ctx.at(n_updates=total.n_updates, n_samples=total.n_samples)
            self.state = hooks.aggregate(counted, self.state, mean)
        self.state = self._kept(self.state, self.experiment.algorithm.cloud_state)
        hooks.figures(ctx, self.state)

    def _seats_of(self, edge: int) -> list[Seat]:
        seats = self.experiment.population.seats
        return [seat for seat in seats if seat.home_edge == edge and seat.number not in self._retired]

    def _order(self, ctx: Context, edge: int, broadcast: Record) -> Any:
        order = RoundOrder[Any](
            run_id=RUN,
            round_no=ctx.round_no,
            spec=self.experiment.spec,
            population=self.experiment.population.digest,
            placement="",
            phase=ctx.phase,
            kind="train",
            n_clients=ctx.n_clients,
            edge=edge,
            base=None,
            bases={},
            retired={},
            clock_s=0.0,
            broadcast=broadcast,
        )
        return self.passed(order, self.experiment.wire_types.round_order)

    def passed(self, record: Record, kind: type[Any]) -> Any:
        """A record as its receiver decodes it, as this type."""
        body = bytes(codec.encode(record).join())
        self.monitor.encoded.append((record, body))
        found = codec.decode(kind, body, model=self.experiment.shapes)
        if bytes(codec.encode(found).join()) != body:
            raise CheckFailed(f"{type(record).__name__} is another one after it was encoded and decoded")
        return found

    def _kept(self, state: Record, kind: type[Record]) -> Any:
        return self.passed(state, kind)

    def _accumulator(self) -> Accumulator:
        return Accumulator(self.experiment.algorithm.update, self.experiment.fixed_point, model=self.experiment.shapes)

    def _mean(self, total: Accumulator) -> Record | None:
        kind, fixed_point = self.experiment.algorithm.update, self.experiment.fixed_point
        return mean_of(total.result(), kind, fixed_point, model=self.experiment.shapes)


class _Edge:
    """A round of one edge."""

    def __init__(self, rounds: TriedRounds, ctx: Context, seats: list[Seat]) -> None:
        self.rounds, self.ctx, self.experiment = rounds, ctx, rounds.experiment
        self.algorithm, self.hooks = self.experiment.algorithm, self.experiment.algorithm.edge
        held_out = self.experiment.population.held_out
        self.trainers = [seat for seat in seats if seat.n_train and seat.number not in held_out]
        self.samples = dict[tuple[int, int], int]()

    @property
    def n_samples(self) -> int:
        """The samples of the seats whose updates were used, each counted once however many edge rounds there are."""
        return sum(self.samples.values())

    def run(self, broadcast: Record) -> tuple[PartialSum | Record | None, int, int]:
        """The edge's sum or own update, and the numbers of updates and samples for which it stands."""
        edges, edge = self.rounds._edges, self.ctx.edge or 0
        begun = self.hooks.begin(self.ctx, edges.get(edge) or self.hooks.init(self.ctx), broadcast)
        self.state, total = begun.state, self.rounds._accumulator()
        for edge_round in range(begun.edge_rounds * n_syncs(self.ctx.spec, self.trainers)):
            total = self.rounds._accumulator()
            self._edge_round(self.ctx.at(edge_round=edge_round), total, forward_sum=begun.forward_sum)
        finish = self.hooks.finish(self.ctx.at(n_samples=self.n_samples), self.state)
        edges[edge] = self.rounds._kept(finish.state, self.algorithm.edge_state)
        if finish.update is not None:
            update = self.rounds.passed(finish.update, self.algorithm.update)
            return update, int(bool(self.samples)), self.n_samples
        return (total.result() if total.n_updates else None), total.n_updates, total.n_samples

    def _edge_round(self, ctx: Context, total: Accumulator, *, forward_sum: bool) -> None:
        chosen = self.hooks.select(ctx, self.state, self.trainers, EdgeView()) if self.trainers else []
        while chosen or ctx.wave == 0:
            active = [seat for seat in self.trainers if seat.number in set(chosen) - self.rounds._retired]
            tasks = self.hooks.schedule(ctx, self.state, active, EdgeView()) if active else {}
            outcomes = self._wave(ctx, {seat: self._task(ctx, task) for seat, task in tasks.items()}, total)
            mean = None if forward_sum else self.rounds._mean(total)
            if mean is not None:
                counted = ctx.at(n_updates=total.n_updates, n_samples=total.n_samples)
                self.state = self.hooks.aggregate(counted, self.state, mean)
            step = self.hooks.advance(ctx, self.state, tasks, outcomes)
            self.state, chosen = step.state, list(step.revisit)
            self.rounds._retired |= step.retire.keys()
            ctx = ctx.at(wave=ctx.wave + 1)

    def _task(self, ctx: Context, task: Task) -> Task:
        kinds = {phase.name: phase.kind for phase in self.experiment.phases}
        collects = task.kind == "train" and kinds.get(task.phase or ctx.phase) == "collect"
        return task.replace(kind="collect") if collects else task

    def _wave(self, ctx: Context, tasks: dict[int, Task], total: Accumulator) -> list[Outcome[Any]]:
        """Visits seats, and adds up the updates that the algorithm admits."""
        if not tasks:
            return []
        stage = WaveId(run_id=RUN, round_no=ctx.round_no, edge_round=ctx.edge_round, wave=ctx.wave)
        order = VisitOrder[Any](
            stage=stage,
            spec=self.experiment.spec,
            population=self.experiment.population.digest,
            phase=ctx.phase,
            n_clients=ctx.n_clients,
            edge=ctx.edge or 0,
            hold=True,
            messages=tuple(self.hooks.dispatch(ctx, self.state, self.experiment.seat(seat)) for seat in sorted(tasks)),
            visits=tuple(
                Visit(seat=seat, task=tasks[seat], message=at, base=self.rounds._bases.get(seat))
                for at, seat in enumerate(sorted(tasks))
            ),
        )
        received = self.rounds.passed(order, self.experiment.wire_types.visit_order)
        made = run_visits(self.experiment, received, self.rounds.states)
        answer = self.rounds.passed(made.answer(), self.experiment.wire_types.visit_answer)
        for outcome in answer.outcomes:
            if outcome.failure is not None:
                raise CheckFailed(f"the task of device {outcome.seat} fails: {outcome.failure.detail}")
        refused = self._refused(ctx, answer.outcomes)
        shared = {seat for seat, task in tasks.items() if task.samples is not None}
        self._add(stage, made.singles, refused, total, shared)
        return list(answer.outcomes)

    def _refused(self, ctx: Context, outcomes: list[Outcome[Any]]) -> dict[int, bool]:
        """The seats whose updates the algorithm refuses, and whether they keep the state of their visit."""
        if not self.algorithm.reports:
            return {}
        reports = {outcome.seat: outcome.report for outcome in outcomes if outcome.report is not None}
        admission = self.hooks.admit(ctx, self.state, reports)
        self.state = admission.state
        keeps = self.algorithm.on_refusal == "keep"
        verdicts = {seat: verdict for seat, verdict in admission.verdicts.items() if not verdict.upload}
        return {seat: keeps if verdict.keep is None else verdict.keep for seat, verdict in verdicts.items()}

    def _add(
        self,
        stage: WaveId,
        made: list[Contribution[Any]],
        refused: dict[int, bool],
        total: Accumulator,
        shared: set[int],
    ) -> None:
        used = [item for item in made if item.seat not in refused]
        for item in used:
            update = self.rounds.passed(item.update, self.algorithm.update)
            total.add(update, item.n_samples)
        self.rounds.sent.append(used)
        self.samples |= {(item.seat, stage.wave if item.seat in shared else 0): item.n_samples for item in used}
        version = Version(stage.round_no, stage.edge_round, stage.wave)
        kept = [item.seat for item in made if refused.get(item.seat, True)]
        self.rounds._bases |= dict.fromkeys(kept, version)
