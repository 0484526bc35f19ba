"""One visit: receive, train, report, evaluate. Agents and an edge's own worker run clients by this code only.

Synchronous and for one thread: dropout and random transforms draw from torch's default generator, which each visit
seeds from its own stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from shared.core.errors import Cancelled, Conflict, StrataError
from shared.core.scores import Score
from shared.federation.aggregation import check_update
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.hooks import Algorithm, Local, Trainer, test_by_owner
from shared.federation.messages import Contribution, Failure, Outcome, Visit, VisitOrder, WaveId
from shared.federation.update_checks import check_origin, clients_of
from shared.federation.visits.client_state import ClientStateAccess
from shared.federation.visits.trainer import trainer_for
from shared.federation.visits.uploads import FinishedVisit, UploadBuilder, held_bytes
from shared.runtime.logs import log_context, log_event
from shared.storage.states import StateOwner, StateStore, Version
from shared.training.loop import Stopped

log = logging.getLogger(__name__)


def run_visits(
    experiment: Experiment,
    order: VisitOrder[Any],
    states: StateStore,
    *,
    stopped: Stopped = lambda: False,
    on_start: Callable[[int], None] = lambda seat: None,
    on_end: Callable[[Outcome[Any]], None] = lambda outcome: None,
) -> UploadBuilder:
    """Runs the visits of an order one after another.

    Args:
        experiment: derived from the order's spec.
        order: decoded with the algorithm's own types, its tensors in torch's own memory.
        states: the store of the seats' states.
        stopped: called between batches; True ends all visits with `Cancelled`.
        on_start: called with the seat before each visit.
        on_end: called with the outcome after each visit.

    Returns:
        The builder that holds the outcomes and updates.

    Raises:
        Conflict: the population derived here differs from the edge's.
        Cancelled: the caller disconnected.
    """
    if experiment.population.digest != order.population:
        raise Conflict(
            "the population digest differs from the edge's; do both use the same data set and package versions?",
            field="population",
        )
    uploads = UploadBuilder(experiment, hold=order.hold, n_due=sum(v.task.kind != "evaluate" for v in order.visits))
    with log_context(**wave_fields(order.stage), home=order.edge):
        for visit in order.visits:
            on_start(visit.seat)
            log_event("visit.begun", seat=visit.seat, kind=visit.task.kind)
            began = time.monotonic()
            finished = _run_visit_safely(experiment, order, visit, order.messages[visit.message], states, stopped)
            _log_end(finished.outcome, time.monotonic() - began)
            on_end(finished.outcome)
            uploads.take(finished)
    return uploads


def wave_fields(wave_id: WaveId) -> dict[str, object]:
    """The identifiers of a wave as fields of log lines."""
    return {"run": wave_id.run_id, "round": wave_id.round_no, "edge_round": wave_id.edge_round, "wave": wave_id.wave}


def _log_end(outcome: Outcome[Any], wall_s: float) -> None:
    failure = outcome.failure
    if failure is not None:
        why = {"reason": failure.reason, "detail": failure.detail}
        log_event("visit.failed", level=logging.WARNING, seat=outcome.seat, **why)
    else:
        lasted = round(wall_s, 6)
        log_event("visit.ended", seat=outcome.seat, kind=outcome.kind, n_samples=outcome.n_samples, wall_s=lasted)


def _run_visit_safely(
    experiment: Experiment, order: VisitOrder[Any], visit: Visit, message: Any, states: StateStore, stopped: Stopped
) -> FinishedVisit:
    """Runs a visit; a failure becomes part of its outcome."""
    try:
        return run_visit(experiment, order, visit, message, states, stopped)
    except Cancelled:
        raise
    except StrataError as error:
        reason, detail = error.code, error.detail
    except Exception as error:
        log.exception("visit of seat %s failed", visit.seat)
        reason, detail = "error", f"{type(error).__name__}: {error}"
    failure = Failure(seat=visit.seat, edge=order.edge, reason=reason, detail=detail)
    return FinishedVisit(Outcome(seat=visit.seat, kind=visit.task.kind, failure=failure))


def run_visit(
    experiment: Experiment, order: VisitOrder[Any], visit: Visit, message: Any, states: StateStore, stopped: Stopped
) -> FinishedVisit:
    """Runs one visit from the state that it names, and saves the new state under this wave's version.

    Hooks get all tensors on the experiment's compute device; all that leaves the visit is in the CPU's memory.
    """
    wave_id, seat, algorithm = order.stage, experiment.seat(visit.seat), experiment.algorithm
    phase = visit.task.phase or order.phase
    ctx = experiment.ctx(phase=phase, round_no=wave_id.round_no, n_clients=order.n_clients, edge=order.edge)
    ctx = ctx.at(edge_round=wave_id.edge_round, wave=wave_id.wave, seat=seat.number)
    device = experiment.device
    device.seed(ctx.seed("torch"))
    message = device.to_device(message)
    owner, compressor = StateOwner(wave_id.run_id, f"seat-{seat.number}"), experiment.compressor
    kept = ClientStateAccess(algorithm, states, owner, visit.base, with_residual=compressor.keeps_residual)
    state, residual, fresh = kept.load()
    state = device.to_device(algorithm.device.init(ctx) if state is None else state)
    trainer = trainer_for(
        experiment, visit.task, experiment.seat_in(seat.number, wave_id.round_no).train, seat.test, stopped
    )
    local, report, update = None, None, None
    if visit.task.kind != "evaluate":
        local = algorithm.device.local_update(ctx, state, message, trainer)
        state = local.state
        if algorithm.reports and local.update is not None:
            report = algorithm.device.report(ctx, state, local, message)
        if local.update is not None:
            update, residual = compressor.update(device.to_cpu(local.update), residual)
        kept.save(Version(wave_id.round_no, wave_id.edge_round, wave_id.wave), device.to_cpu(state), residual)
    trained_at = time.monotonic()
    received, mine, own_on = _tested(algorithm, ctx, state, message, local, trainer)
    testing_s = time.monotonic() - trained_at
    outcome = Outcome[Any](
        seat=seat.number,
        kind=visit.task.kind,
        n_samples=trainer.n_samples if local else 0,
        **_counts(local),
        received=received,
        own=mine,
        own_on=own_on,
        report=device.to_cpu(report),
        fresh_state=fresh,
    )
    if update is None:
        return FinishedVisit(outcome, None, testing_s)
    check_update(update, experiment.fixed_point)
    check_origin(experiment, ctx, update, clients_of([ctx]))
    made: Contribution[Any] = Contribution(seat=seat.number, n_samples=trainer.n_samples, update=update)
    size = held_bytes(outcome, made, reports=algorithm.reports) if order.hold else 0
    return FinishedVisit(outcome.replace(held_bytes=size), made, testing_s)


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
    score = {"n": done.n_samples, "n_correct": done.n_correct, "loss_sum": done.loss * done.n_samples}
    return {**found, "n_steps": done.n_steps, "train": score}
