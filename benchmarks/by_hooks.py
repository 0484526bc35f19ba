"""A run by hooks alone: the hooks of all tiers in their order, in this process, without services.

One edge, all devices in every round, no late updates; the algorithm decides which reports it admits. `step_cost` uses
it to measure the visits of a device in the middle of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shared.federation.aggregation import Accumulator, mean_of
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import Local
from shared.federation.messages import Outcome, Task
from shared.federation.population import Seat
from shared.federation.visits.trainer import trainer_for

Visit = Callable[[], Local]


class ByHooks:
    """A run of one edge: the states of its tiers after some rounds.

    Args:
        experiment: the experiment of a resolved spec with `num_edges: 1`.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.algorithm = experiment, experiment.algorithm
        self.seats = {seat.number: seat for seat in experiment.population.seats if seat.role == "train"}
        self.round_no = 0
        ctx = self.ctx(1)
        self.cloud: Any = self.algorithm.cloud.init(ctx, experiment.initial)
        self.edge: Any = self.algorithm.edge.init(ctx.at(edge=0))
        self.devices: dict[int, Any] = {
            seat: self.algorithm.device.init(ctx.at(edge=0, seat=seat)) for seat in self.seats
        }

    def ctx(self, round_no: int) -> Context:
        """The cloud's context in a round."""
        phase = self.experiment.phase_of(round_no).name
        return self.experiment.ctx(phase=phase, round_no=round_no, n_clients=len(self.seats))

    def collecting(self, round_no: int) -> bool:
        """Whether the round only collects data, without training."""
        return self.experiment.phase_of(round_no).kind == "collect"

    def visits(self) -> dict[int, Visit]:
        """The visits of the next round by seat; each can be repeated any number of times."""
        self._descend()
        return {seat: self._visit(self.seats[seat]) for seat in self.seats}

    def _descend(self) -> Context:
        ctx = self.ctx(self.round_no + 1)
        broadcast = self.algorithm.cloud.broadcast(ctx, self.cloud, 0, list(self.seats.values()))
        self.edge = self.algorithm.edge.begin(ctx.at(edge=0), self.edge, broadcast).state
        return ctx

    def _task(self, round_no: int) -> Task:
        kind, spec = self.experiment.phase_of(round_no).kind, self.experiment.spec
        return Task(kind=kind, epochs=spec.local_epochs, batch_size=spec.batch_size, evaluate=False)

    def _visit(self, seat: Seat) -> Visit:
        round_no = self.round_no + 1
        at_edge = self.ctx(round_no).at(edge=0)
        ctx = at_edge.at(seat=seat.number, n_samples=len(seat.train))
        message = self.algorithm.edge.dispatch(at_edge, self.edge, seat)
        state, trainer = (
            self.devices[seat.number],
            trainer_for(self.experiment, self._task(round_no), seat.train, seat.test, seat=seat.number),
        )

        def visit() -> Local:
            torch.default_generator.manual_seed(ctx.seed("torch"))
            done: Local = self.algorithm.device.local_update(ctx, state, message, trainer)
            return done

        return visit

    def round(self) -> dict[int, Local]:
        """Run one round, up to the cloud's new state, and return the results of its visits."""
        visits = self.visits()
        self.round_no += 1
        n_samples = sum(len(self.seats[seat].train) for seat in visits)
        ctx = self.ctx(self.round_no).at(n_updates=len(visits), n_samples=n_samples)
        at_edge, hooks, task = ctx.at(edge=0), self.algorithm.edge, self._task(self.round_no)
        done = {seat: visit() for seat, visit in visits.items()}
        self.devices = {seat: local.state for seat, local in done.items()}
        reports = self._reports(at_edge, done)
        if reports:
            self.edge = hooks.admit(at_edge, self.edge, reports).state
        mean = self._mean({seat: local.update for seat, local in done.items()})
        if hooks.forms_model(at_edge):
            self.edge = hooks.aggregate(at_edge, self.edge, mean)
        outcomes = [Outcome[Any](seat=s, kind=task.kind, report=reports.get(s), figures=done[s].figures) for s in done]
        self.edge = hooks.advance(at_edge, self.edge, dict.fromkeys(done, task), outcomes).state
        finish = hooks.finish(at_edge, self.edge)
        self.edge = finish.state
        up = mean if finish.update is None else self._mean({next(iter(done)): finish.update})
        n_updates = len(done) if finish.update is None else 1
        self.cloud = self.algorithm.cloud.aggregate(ctx.at(n_updates=n_updates), self.cloud, up)
        return done

    def _reports(self, ctx: Context, done: dict[int, Local]) -> dict[int, Any]:
        if not self.algorithm.reports:
            return {}
        message = self.algorithm.edge.dispatch(ctx, self.edge, next(iter(self.seats.values())))
        device = self.algorithm.device
        return {seat: device.report(ctx.at(seat=seat), local.state, local, message) for seat, local in done.items()}

    def _mean(self, updates: dict[int, Any]) -> Any:
        accumulator = Accumulator(self.algorithm.update, self.experiment.fixed_point)
        for seat, update in updates.items():
            accumulator.add(update, len(self.seats[seat].train))
        return mean_of(accumulator.result(), self.algorithm.update, self.experiment.fixed_point)
