"""One visit: receive, train, report, evaluate. Agents and an edge's own worker run clients by this code only.

Synchronous and for one thread: dropout and random transforms draw from torch's default generator, which each visit
seeds from its own stream before it trains and before it ends, since others may train in between; where code of a user
may draw, once, before its first hook: such a visit is run alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from shared.core.scores import Score
from shared.core.tensor_records import TensorMap
from shared.federation.aggregation import check_update
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import Algorithm, Local, Trainer, test_by_owner
from shared.federation.messages import Contribution, Outcome, Visit, VisitOrder
from shared.federation.update_checks import check_origin, clients_of
from shared.federation.visits.client_state import ClientStateAccess
from shared.federation.visits.trainer import LocalTrainer, trainer_for
from shared.federation.visits.uploads import FinishedVisit, held_bytes
from shared.storage.states import StateOwner, StateStore, Version
from shared.training.loop import Stopped


def begin_visit(
    experiment: Experiment,
    order: VisitOrder[Any],
    visit: Visit,
    message: Any,
    states: StateStore,
    stopped: Stopped,
    keep_from: Version | None,
) -> OpenVisit:
    """Begins a visit: its seat's state and message are on the experiment's compute device."""
    wave_id, seat, algorithm = order.stage, experiment.seat(visit.seat), experiment.algorithm
    phase = visit.task.phase or order.phase
    ctx = experiment.ctx(phase=phase, round_no=wave_id.round_no, n_clients=order.n_clients, edge=order.edge)
    own = experiment.seat_in(seat.number, wave_id.round_no).train
    trainer = trainer_for(experiment, visit.task, own, lambda: seat.test, stopped, seat.number)
    ctx = ctx.at(edge_round=wave_id.edge_round, wave=wave_id.wave, seat=seat.number, n_samples=trainer.n_samples)
    device = experiment.device
    if experiment.draws_freely:
        device.seed(ctx.seed("torch"), all_generators=True)
    owner, with_residual = StateOwner(wave_id.run_id, f"seat-{seat.number}"), experiment.compressor.keeps_residual
    kept = ClientStateAccess(algorithm, states, owner, visit.base, with_residual, keep_from)
    state, residual, fresh = kept.load()
    state = device.to_device(algorithm.device.init(ctx) if state is None else state)
    return OpenVisit(experiment, order, visit, ctx, state, device.to_device(message), trainer, kept, residual, fresh)


@dataclass(frozen=True)
class OpenVisit:
    """A visit that has begun.

    Hooks get all tensors on the experiment's compute device; all that leaves the visit is in the CPU's memory.

    Attributes:
        state: the seat's state before the visit.
        residual: the error of its compressed updates so far.
        fresh: its state was missing, so that it starts anew.
    """

    experiment: Experiment
    order: VisitOrder[Any]
    visit: Visit
    ctx: Context
    state: Any
    message: Any
    trainer: LocalTrainer
    kept: ClientStateAccess
    residual: TensorMap
    fresh: bool

    def train(self) -> Callable[[], FinishedVisit]:
        """Trains, unless the task is to evaluate; returns what ends the visit."""
        if self.visit.task.kind == "evaluate":
            return partial(self.end, None)
        if not self.experiment.draws_freely:  # others may have trained since it began
            self.experiment.device.seed(self.ctx.seed("torch"))
        hooks = self.experiment.algorithm.device
        return partial(self.end, hooks.local_update(self.ctx, self.state, self.message, self.trainer))

    def end(self, local: Local | None) -> FinishedVisit:
        """Ends the visit with what training left behind, None if it only evaluates; saves the seat's new state."""
        experiment, ctx, trainer, device = self.experiment, self.ctx, self.trainer, self.experiment.device
        algorithm, state, report, update = experiment.algorithm, self.state, None, None
        if not experiment.draws_freely:
            device.seed(ctx.seed("torch" if local is None else "torch, trained"))
        if local is not None:
            state = local.state
            if algorithm.reports and local.update is not None:
                report = algorithm.device.report(ctx, state, local, self.message)
            update = self._saved(local)
        trained_at = time.monotonic()
        received, mine, own_on = _tested(algorithm, ctx, state, self.message, local, trainer)
        testing_s = time.monotonic() - trained_at
        outcome = Outcome[Any](
            seat=self.visit.seat,
            kind=self.visit.task.kind,
            n_samples=trainer.n_samples if local else 0,
            **_counts(local),
            received=received,
            own=mine,
            own_on=own_on,
            report=device.to_cpu(report),
            fresh_state=self.fresh,
        )
        if update is None:
            return FinishedVisit(outcome, None, testing_s)
        check_update(update, experiment.fixed_point)
        check_origin(experiment, ctx, update, clients_of(ctx, [self.visit.seat]))
        made: Contribution[Any] = Contribution(seat=self.visit.seat, n_samples=trainer.n_samples, update=update)
        if self.order.hold:
            outcome = outcome.replace(held_bytes=held_bytes(outcome, made, reports=algorithm.reports))
        return FinishedVisit(outcome, made, testing_s)

    def _saved(self, local: Local) -> Any:
        """The compressed update, if there is one; the seat's state is saved under this wave's version."""
        wave_id, device, update, residual = self.order.stage, self.experiment.device, None, self.residual
        if local.update is not None:
            update, residual = self.experiment.compressor.update(device.to_cpu(local.update), residual)
        version = Version(wave_id.round_no, wave_id.edge_round, wave_id.wave)
        self.kept.save(version, device.to_cpu(local.state), residual)
        return update


def _tested(
    algorithm: Algorithm, ctx: Context, state: Any, message: Any, local: Local | None, trainer: Trainer
) -> tuple[Any, Any, dict[str, Score]]:
    """Scores of the received and the own model on the seat's tests, and of the own one on the spec's `test_on`."""
    if not trainer.task.evaluate:
        return None, None, {}
    hooks = algorithm.device
    own_model = hooks.personalise(ctx, state, message, local, trainer)
    received, mine = hooks.evaluate(ctx, state, message, own_model, trainer)
    if own_model is None:
        return received, mine, {}
    prepare = partial(hooks.prepare, ctx, state, message)
    return (
        received,
        mine,
        {name: test_by_owner(trainer, own_model, trainer.test_sets[name], prepare) for name in ctx.spec.test_on},
    )


def _counts(local: Local | None) -> dict[str, Any]:
    if local is None:
        return {}
    found: dict[str, Any] = {
        "n_trained": local.n_passed if local.n_trained is None else local.n_trained,
        "figures": local.figures,
    }
    if local.trained is None:
        return found
    done = local.trained
    if local.n_trained is None:
        found["n_trained"] = done.n_samples + local.n_passed
    n = done.n_predictions
    weight = n if done.loss_weight is None else done.loss_weight
    score = {"n": n, "n_correct": done.n_correct, "loss_sum": done.loss * weight, "loss_weight": done.loss_weight}
    return {**found, "n_steps": done.n_steps, "train": score}
