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
from shared.federation.context import Ctx
from shared.federation.experiment import Lab
from shared.federation.hooks import Algorithm, Bench, Local, test_by_owner
from shared.federation.messages import Contribution, Failure, Outcome, Stage, Visit, VisitOrder
from shared.federation.update_checks import check_sent, named_by
from shared.federation.visits.state import StateOf
from shared.federation.visits.trainer import trainer_for
from shared.federation.visits.uploads import Collector, Visited, held_bytes
from shared.runtime.logs import about, tell
from shared.storage.states import Owner, Version, Versions
from shared.training.loop import Stopped

log = logging.getLogger(__name__)


def run_visits(
    lab: Lab,
    order: VisitOrder[Any],
    states: Versions,
    *,
    stopped: Stopped = lambda: False,
    on_start: Callable[[int], None] = lambda seat: None,
    on_end: Callable[[Outcome[Any]], None] = lambda outcome: None,
) -> Collector:
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
    if lab.members.digest != order.population:
        raise Conflict("the population derived here is not the edge's: other data set or version?", field="population")
    collector = Collector(lab, hold=order.hold, n_due=sum(v.work.kind != "evaluate" for v in order.visits))
    with about(**ids_of(order.stage), home=order.edge):
        for visit in order.visits:
            on_start(visit.seat)
            tell("visit.begun", seat=visit.seat, kind=visit.work.kind)
            began = time.monotonic()
            visited = _guarded(lab, order, visit, order.messages[visit.message], states, stopped)
            _told(visited.outcome, time.monotonic() - began)
            on_end(visited.outcome)
            collector.take(visited)
    return collector


def ids_of(stage: Stage) -> dict[str, object]:
    """What a line of log says of where in its run it belongs."""
    return {"run": stage.run_id, "round": stage.round_no, "edge_round": stage.edge_round, "wave": stage.wave}


def _told(outcome: Outcome[Any], wall_s: float) -> None:
    lost = outcome.failure
    if lost is not None:
        tell("visit.failed", level=logging.WARNING, seat=outcome.seat, reason=lost.reason, detail=lost.detail)
    else:
        lasted = round(wall_s, 6)
        tell("visit.ended", seat=outcome.seat, kind=outcome.kind, n_samples=outcome.n_samples, wall_s=lasted)


def _guarded(
    lab: Lab, order: VisitOrder[Any], visit: Visit, message: Any, states: Versions, stopped: Stopped
) -> Visited:
    """A visit whose failure is data."""
    try:
        return pay_visit(lab, order, visit, message, states, stopped)
    except Cancelled:
        raise
    except StrataError as error:
        reason, detail = error.code, error.detail
    except Exception as error:
        log.exception("visit of seat %s failed", visit.seat)
        reason, detail = "error", f"{type(error).__name__}: {error}"
    failure = Failure(seat=visit.seat, edge=order.edge, reason=reason, detail=detail[:500])
    return Visited(Outcome(seat=visit.seat, kind=visit.work.kind, failure=failure))


def pay_visit(
    lab: Lab, order: VisitOrder[Any], visit: Visit, message: Any, states: Versions, stopped: Stopped
) -> Visited:
    """One visit from the state named in it; leaves the new state behind under this wave's version.

    Hooks see all tensors on the lab's processor; what leaves the visit lies in the CPU's memory.
    """
    stage, seat, algorithm = order.stage, lab.seat(visit.seat), lab.algorithm
    phase = visit.work.phase or order.phase
    ctx = lab.ctx(phase=phase, round_no=stage.round_no, n_clients=order.n_clients, edge=order.edge)
    ctx = ctx.at(edge_round=stage.edge_round, wave=stage.wave, seat=seat.number)
    processor = lab.processor
    processor.seed(ctx.seed("torch"))
    message = processor.bring(message)
    owner, compression = Owner(stage.run_id, f"seat-{seat.number}"), lab.compression
    kept = StateOf(algorithm, states, owner, visit.base, with_memory=compression.memory)
    state, memory, fresh = kept.load()
    state = processor.bring(algorithm.device.init(ctx) if state is None else state)
    bench = trainer_for(lab, visit.work, lab.seat_in(seat.number, stage.round_no).train, seat.test, stopped)
    local, report, update = None, None, None
    if visit.work.kind != "evaluate":
        local = algorithm.device.local_update(ctx, state, message, bench)
        state = local.state
        if algorithm.reports and local.update is not None:
            report = algorithm.device.report(ctx, state, local, message)
        if local.update is not None:
            update, memory = compression.update(processor.fetch(local.update), memory)
        kept.save(Version(stage.round_no, stage.edge_round, stage.wave), processor.fetch(state), memory)
    trained_at = time.monotonic()
    received, mine, own_on = _tested(algorithm, ctx, state, message, local, bench)
    testing_s = time.monotonic() - trained_at
    outcome = Outcome[Any](
        seat=seat.number,
        kind=visit.work.kind,
        n_samples=bench.n_samples if local else 0,
        **_counts(local),
        received=received,
        own=mine,
        own_on=own_on,
        report=processor.fetch(report),
        fresh_state=fresh,
    )
    if update is None:
        return Visited(outcome, None, testing_s)
    check_update(update, lab.grid)
    check_sent(lab, ctx, update, named_by([ctx]))
    made: Contribution[Any] = Contribution(seat=seat.number, n_samples=bench.n_samples, update=update)
    size = held_bytes(outcome, made, reports=algorithm.reports) if order.hold else 0
    return Visited(outcome.but(held_bytes=size), made, testing_s)


def _tested(
    algorithm: Algorithm, ctx: Ctx, state: Any, message: Any, local: Local | None, bench: Bench
) -> tuple[Any, Any, dict[str, Score]]:
    """The model received and the seat's own on its own tests, and its own on those that the spec names besides."""
    if not bench.work.evaluate:
        return None, None, {}
    hooks = algorithm.device
    own_model = hooks.personalise(ctx, state, message, local, bench)
    received, mine = hooks.evaluate(ctx, state, message, own_model, bench)
    if own_model is None:
        return received, mine, {}
    prepare = partial(hooks.prepare, ctx, state, message)
    return (
        received,
        mine,
        {name: test_by_owner(bench, own_model, bench.test_sets[name], prepare) for name in ctx.spec.test_on},
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
