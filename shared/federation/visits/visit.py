"""The visits of an order: one after another or, as the spec's `vectorised` says, many at the same time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from shared.core.errors import Cancelled, Conflict, StrataError
from shared.core.process_settings import settings_kept
from shared.core.user_code import described
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure, Outcome, Visit, VisitOrder, WaveId
from shared.federation.visits.open_visit import OpenVisit, begin_visit
from shared.federation.visits.stacks import StackVisit, fit_stack, slices_of, stacks_of
from shared.federation.visits.uploads import FinishedVisit, UploadBuilder
from shared.runtime.logs import log_context, log_event
from shared.storage.states import StateStore, Version
from shared.training.loop import Stopped

log = logging.getLogger(__name__)
T = TypeVar("T")


def run_visits(
    experiment: Experiment,
    order: VisitOrder[Any],
    states: StateStore,
    *,
    keep_from: Version | None = None,
    stopped: Stopped = lambda: False,
    on_start: Callable[[int], None] = lambda seat: None,
    on_end: Callable[[Outcome[Any], float], None] = lambda outcome, wall_s: None,
) -> UploadBuilder:
    """Runs the visits of an order.

    Args:
        experiment: derived from the order's spec.
        order: decoded with the algorithm's own types, its tensors in torch's own memory.
        states: the store of the seats' states.
        keep_from: the oldest version from which a repetition may begin; None if it is where each visit begins.
        stopped: called between batches; True ends all visits with `Cancelled`.
        on_start: called with the seat before each visit.
        on_end: called after each visit with its outcome and wall seconds; of visits at the same time, their mean.

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
    experiment.population.prepare(visit.seat for visit in order.visits)
    uploads = UploadBuilder(experiment, hold=order.hold, n_due=sum(v.task.kind != "evaluate" for v in order.visits))
    with log_context(**wave_fields(order.stage), home=order.edge):
        for finished, wall_s in _Visits(experiment, order, states, keep_from, stopped, on_start).run():
            _log_end(finished.outcome, wall_s)
            on_end(finished.outcome, wall_s)
            uploads.take(finished)
    uploads.sort(order.visits)
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


Timed = tuple[FinishedVisit, float]
"""A finished visit and its wall seconds."""


@dataclass(frozen=True)
class _Visits:
    """Runs the visits of an order; a failure becomes part of a visit's outcome."""

    experiment: Experiment
    order: VisitOrder[Any]
    states: StateStore
    keep_from: Version | None
    stopped: Stopped
    on_start: Callable[[int], None]

    def run(self) -> Iterator[Timed]:
        """Yields the visits as they end."""
        vectorised = self.experiment.spec.vectorised
        together = [visit for visit in self.order.visits if vectorised and visit.task.kind == "train"]
        for visit in self.order.visits:
            if vectorised is None or visit.task.kind != "train":
                yield self._alone(visit)
        if vectorised is not None:
            for rows, visits in slices_of(self.experiment, self.order, together, vectorised.width):
                yield from self._together(visits, rows)

    def _alone(self, visit: Visit) -> Timed:
        began = time.monotonic()
        self._start(visit)
        finished = self._safely(visit, lambda: self._begin(visit).run())
        return finished, time.monotonic() - began

    def _together(self, visits: Sequence[Visit], rows: int) -> Iterator[Timed]:
        """Runs the visits of a stack: their training at the same time, all else one after another."""
        began = time.monotonic()
        finished: list[FinishedVisit] = []
        opened: list[StackVisit] = []
        for visit in visits:
            self._start(visit)
            begun = self._safely(visit, partial(self._join, visit))
            if isinstance(begun, StackVisit):
                opened.append(begun)
            else:
                finished.append(begun)
        for stack in stacks_of(opened):
            for each, fit in zip(stack, fit_stack(stack, rows, self.stopped), strict=True):
                finished.append(self._safely(each.open.visit, partial(each.end, fit)))
        wall_s = (time.monotonic() - began) / len(visits)
        yield from ((each, wall_s) for each in finished)

    def _start(self, visit: Visit) -> None:
        self.on_start(visit.seat)
        log_event("visit.begun", level=logging.DEBUG, seat=visit.seat, kind=visit.task.kind)

    def _begin(self, visit: Visit) -> OpenVisit:
        message = self.order.messages[visit.message]
        return begin_visit(self.experiment, self.order, visit, message, self.states, self.stopped, self.keep_from)

    def _join(self, visit: Visit) -> StackVisit:
        return StackVisit.of(self._begin(visit))

    def _safely(self, visit: Visit, work: Callable[[], T]) -> T | FinishedVisit:
        """Does a part of a visit; if it fails, the visit has ended."""
        try:
            with settings_kept():
                return work()
        except Cancelled:
            raise
        except StrataError as error:
            reason, detail = error.code, error.detail
        except BaseException as error:  # a plug-in may call `exit`
            log.exception("task of device %s failed", visit.seat)
            reason, detail = "error", described(error)
        failure = Failure(seat=visit.seat, edge=self.order.edge, reason=reason, detail=detail)
        return FinishedVisit(Outcome(seat=visit.seat, kind=visit.task.kind, failure=failure))
