"""One visit: receive, train, report, evaluate. The only code that runs a client, at agents and at an edge's worker.

Synchronous and for one thread: dropout and random transforms draw from torch's default generator, which each visit
seeds from its own stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shared import wire
from shared.algorithms._hooks import Algorithm, Bench, Local, test_by_owner
from shared.context import Ctx
from shared.errors import Cancelled, Conflict, StrataError
from shared.intake import check_sent, named_by
from shared.lab import Lab
from shared.messages import (
    Contribution,
    Failure,
    Outcome,
    UploadAnswer,
    Uploads,
    Visit,
    VisitAnswer,
    VisitOrder,
)
from shared.records import Mean, Record, Score, Tensor
from shared.records import own as own
from shared.sums import Fold, check_update, mark_of
from shared.training.loop import Stopped
from shared.versions import Owner, Version, Versions

log = logging.getLogger(__name__)


@dataclass
class Visited:
    """A finished visit: its outcome, its contribution if it made one, wall seconds in which models were tested."""

    outcome: Outcome[Any]
    contribution: Contribution[Any] | None = None
    testing_s: float = 0.0


def run_visits(
    lab: Lab,
    order: VisitOrder[Any],
    states: Versions,
    *,
    stopped: Stopped = lambda: False,
    on_start: Callable[[int], None] = lambda seat: None,
) -> Collector:
    """Run an order's visits one after another, in their order.

    Args:
        lab: of the order's spec.
        order: decoded with the algorithm's own types, its tensors in torch's own memory.
        states: where the seats' states lie.
        stopped: asked between batches; True ends everything with `Cancelled`.
        on_start: told the seat before each visit.

    Raises:
        Conflict: the population derived here is not the edge's.
        Cancelled: nobody waits any more.
    """
    if lab.members.digest != order.population:
        raise Conflict("the population derived here is not the edge's: other data set or version?", field="population")
    collector = Collector(lab, hold=order.hold, n_due=sum(v.work.kind != "evaluate" for v in order.visits))
    for visit in order.visits:
        on_start(visit.seat)
        collector.take(_guarded(lab, order, visit, order.messages[visit.message], states, stopped))
    return collector


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
    kept = StateOf(algorithm, states, Owner(stage.run_id, f"seat-{seat.number}"), visit.base)
    state, fresh = kept.load()
    state = processor.bring(algorithm.device.init(ctx) if state is None else state)
    bench = lab.bench(visit.work, lab.seat_in(seat.number, stage.round_no).train, seat.test, stopped)
    local, report = None, None
    if visit.work.kind != "evaluate":
        local = algorithm.device.local_update(ctx, state, message, bench)
        state = local.state
        if algorithm.reports and local.update is not None:
            report = algorithm.device.report(ctx, state, local, message)
        kept.save(Version(stage.round_no, stage.edge_round, stage.wave), processor.fetch(state))
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
    if local is None or local.update is None:
        return Visited(outcome, None, testing_s)
    update = processor.fetch(local.update)
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
    found = {"n_trained": local.n_passed, "figures": local.figures}
    if local.trained is None:
        return found
    done = local.trained
    score = {"n": done.n_samples, "n_correct": done.n_correct, "loss_sum": done.loss * done.n_samples}
    return {**found, "n_trained": done.n_samples + local.n_passed, "n_steps": done.n_steps, "train": score}


@dataclass(frozen=True)
class StateOf:
    """What a seat remembers from visit to visit; of an algorithm whose devices remember nothing, nothing is kept.

    Args:
        algorithm: of the run.
        states: where states lie.
        owner: the seat.
        base: the version of its last visit that counts, None before the first.
    """

    algorithm: Algorithm
    states: Versions
    owner: Owner
    base: Version | None

    def load(self) -> tuple[Any, bool]:
        """The state of exactly the base, and whether one was named but is not here (a fresh start)."""
        if self.base is None or not self.algorithm.device_remembers:
            return None, False
        data = self.states.load(self.owner, self.base)
        return (None, True) if data is None else (own(wire.decode(self.algorithm.device_state, data)), False)

    def save(self, version: Version, state: Record) -> None:
        """Keep the state that the visit left behind, and drop what no replay can need."""
        if not self.algorithm.device_remembers:
            return
        if self.base is not None:
            self.states.forget_before(self.owner, self.base)
        self.states.save(self.owner, version, wire.encode(state).parts)


# ---- what travels up


def answer_bytes(outcome: Outcome[Any], contribution: Contribution[Any] | None) -> int:
    """Bytes of a visit's answer if the seat had sent it alone: what the modelled link carries."""
    uploads: Uploads[Any] = Uploads(contributions=(contribution,) if contribution else ())
    return wire.size(VisitAnswer(outcomes=(outcome,), uploads=uploads))


def held_bytes(outcome: Outcome[Any], contribution: Contribution[Any], *, reports: bool) -> int:
    """Bytes of the answer that brings a held update, if the seat sends it alone: after its report, or with its visit.

    Without reports only our services hold it back; in the modelled system it is part of the visit's answer.
    """
    return upload_bytes(contribution) if reports else answer_bytes(outcome.but(held_bytes=0), contribution)


def upload_bytes(contribution: Contribution[Any]) -> int:
    """Bytes of an admitted update if the seat had sent it alone, after its report."""
    return wire.size(UploadAnswer(uploads=Uploads(contributions=(contribution,))))


@dataclass
class Collector:
    """Gathers an agent's visits; folds updates into their exact sum where that is smaller than the updates.

    With `hold` nothing is folded: the updates wait for the edge's verdict.

    Attributes:
        n_due: updates that may come: where their sum will be the smaller, none is kept until that shows.
        testing_s: wall seconds in which models were tested; no part of the answer.
    """

    lab: Lab
    hold: bool = False
    n_due: int = 0
    outcomes: list[Outcome[Any]] = field(default_factory=list)
    singles: list[Contribution[Any]] = field(default_factory=list)
    link_bytes: dict[int, int] = field(default_factory=dict)
    fold: Fold | None = None
    testing_s: float = 0.0

    def take(self, visited: Visited) -> None:
        """Add a finished visit."""
        self.outcomes.append(visited.outcome)
        self.testing_s += visited.testing_s
        contribution = visited.contribution
        if contribution is None:
            return
        if self.hold:
            self.singles.append(contribution)
            return
        self.add(contribution, answer_bytes(visited.outcome, contribution))

    def add(self, contribution: Contribution[Any], link_bytes: int) -> None:
        """Add a contribution whose own answer would have had so many bytes."""
        self.link_bytes[contribution.seat] = link_bytes
        if self.fold is None:
            self.singles.append(contribution)
            if not _sum_is_smaller(self.singles, self.n_due):
                return
            self.fold = Fold(self.lab.algorithm.update, self.lab.grid)
            waiting, self.singles = self.singles, []
        else:
            waiting = [contribution]
        for item in waiting:
            self.fold.add(item.update, item.n_samples, checked=True)  # where it was made

    def uploads(self) -> Uploads[Any]:
        """What goes up now."""
        if self.fold is None:
            return Uploads(contributions=() if self.hold else tuple(self.singles))
        return Uploads(folded=self.fold.result(), link_bytes=self.link_bytes)

    def answer(self) -> VisitAnswer[Any, Any]:
        """The answer to the order."""
        return VisitAnswer(outcomes=tuple(self.outcomes), uploads=self.uploads())


def _sum_is_smaller(singles: list[Contribution[Any]], n_due: int) -> bool:
    """Whether 8 bytes for each averaged element are fewer than the own bytes of all that are due, or came."""
    apart = [_mean_bytes(item.update)[0] for item in singles]
    due = sum(apart) / len(apart) * max(n_due, len(apart))
    return due > _mean_bytes(singles[0].update)[1]


def _mean_bytes(update: Record) -> tuple[int, int]:
    own_bytes = sum_bytes = 0
    for name in type(update).model_fields:
        how = mark_of(type(update), name)
        if isinstance(how, Mean):
            elements = list(_tensors_of(getattr(update, name)))
            own_bytes += sum(tensor.numel() * tensor.element_size() for tensor in elements)
            sum_bytes += sum(8 * tensor.numel() for tensor in elements) * (2 if how.per_position else 1)
    return own_bytes, sum_bytes


def _tensors_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_of(item)
