"""One visit: receive, train, report, evaluate. The only code that runs a client, at agents and at an edge's worker.

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
from shared.federation.update_checks import check_origin, named_by
from shared.federation.visits.state import StateOf
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
    """Run an order's visits one after another, in their order.

    Args:
        lab: of the order's spec.
        order: decoded with the algorithm's own types, its tensors in torch's own memory.
        states: where the seats' states lie.
        stopped: asked between batches; True ends everything with `Cancelled`.
        on_start: told the seat before each visit.
        on_end: told what came of each visit.

    Raises:
        Conflict: the population derived here is not the edge's.
        Cancelled: nobody waits any more.
    """
    if experiment.population.digest != order.population:
        raise Conflict("the population derived here is not the edge's: other data set or version?", field="population")
    collector = UploadBuilder(experiment, hold=order.hold, n_due=sum(v.task.kind != "evaluate" for v in order.visits))
    with log_context(**ids_of(order.stage), home=order.edge):
        for visit in order.visits:
            on_start(visit.seat)
            log_event("visit.begun", seat=visit.seat, kind=visit.task.kind)
            began = time.monotonic()
            visited = _guarded(experiment, order, visit, order.messages[visit.message], states, stopped)
            _told(visited.outcome, time.monotonic() - began)
            on_end(visited.outcome)
            collector.take(visited)
    return collector


def ids_of(stage: WaveId) -> dict[str, object]:
    """What a line of log says of where in its run it belongs."""
    return {"run": stage.run_id, "round": stage.round_no, "edge_round": stage.edge_round, "wave": stage.wave}


def _told(outcome: Outcome[Any], wall_s: float) -> None:
    lost = outcome.failure
    if lost is not None:
        log_event("visit.failed", level=logging.WARNING, seat=outcome.seat, reason=lost.reason, detail=lost.detail)
    else:
        lasted = round(wall_s, 6)
        log_event("visit.ended", seat=outcome.seat, kind=outcome.kind, n_samples=outcome.n_samples, wall_s=lasted)


def _guarded(
    experiment: Experiment, order: VisitOrder[Any], visit: Visit, message: Any, states: StateStore, stopped: Stopped
) -> FinishedVisit:
    """A visit whose failure is data."""
    try:
        return pay_visit(experiment, order, visit, message, states, stopped)
    except Cancelled:
        raise
    except StrataError as error:
        reason, detail = error.code, error.detail
    except Exception as error:
        log.exception("visit of seat %s failed", visit.seat)
        reason, detail = "error", f"{type(error).__name__}: {error}"
    failure = Failure(seat=visit.seat, edge=order.edge, reason=reason, detail=detail[:500])
    return FinishedVisit(Outcome(seat=visit.seat, kind=visit.task.kind, failure=failure))


def pay_visit(
    experiment: Experiment, order: VisitOrder[Any], visit: Visit, message: Any, states: StateStore, stopped: Stopped
) -> FinishedVisit:
    """One visit from the state named in it; leaves the new state behind under this wave's version.

    Hooks see all tensors on the lab's processor; what leaves the visit lies in the CPU's memory.
    """
    stage, seat, algorithm = order.stage, experiment.seat(visit.seat), experiment.algorithm
    phase = visit.task.phase or order.phase
    ctx = experiment.ctx(phase=phase, round_no=stage.round_no, n_clients=order.n_clients, edge=order.edge)
    ctx = ctx.at(edge_round=stage.edge_round, wave=stage.wave, seat=seat.number)
    processor = experiment.device
    processor.seed(ctx.seed("torch"))
    message = processor.bring(message)
    owner, compression = StateOwner(stage.run_id, f"seat-{seat.number}"), experiment.compressor
    kept = StateOf(algorithm, states, owner, visit.base, with_memory=compression.memory)
    state, memory, fresh = kept.load()
    state = processor.bring(algorithm.device.init(ctx) if state is None else state)
    trainer = trainer_for(
        experiment, visit.task, experiment.seat_in(seat.number, stage.round_no).train, seat.test, stopped
    )
    local, report, update = None, None, None
    if visit.task.kind != "evaluate":
        local = algorithm.device.local_update(ctx, state, message, trainer)
        state = local.state
        if algorithm.reports and local.update is not None:
            report = algorithm.device.report(ctx, state, local, message)
        if local.update is not None:
            update, memory = compression.update(processor.fetch(local.update), memory)
        kept.save(Version(stage.round_no, stage.edge_round, stage.wave), processor.fetch(state), memory)
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
        report=processor.fetch(report),
        fresh_state=fresh,
    )
    if update is None:
        return FinishedVisit(outcome, None, testing_s)
    check_update(update, experiment.fixed_point)
    check_origin(experiment, ctx, update, named_by([ctx]))
    made: Contribution[Any] = Contribution(seat=seat.number, n_samples=trainer.n_samples, update=update)
    size = held_bytes(outcome, made, reports=algorithm.reports) if order.hold else 0
    return FinishedVisit(outcome.replace(held_bytes=size), made, testing_s)


def _tested(
    algorithm: Algorithm, ctx: Context, state: Any, message: Any, local: Local | None, trainer: Trainer
) -> tuple[Any, Any, dict[str, Score]]:
    """The model received and the seat's own on its own tests, and its own on those that the spec names besides."""
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
