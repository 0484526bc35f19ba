"""The visits of an order, in groups: they train one after another or, as `vectorised` says, at the same time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from shared.core.errors import Cancelled, Conflict, StrataError
from shared.core.process_settings import settings_kept
from shared.core.tensors import n_bytes
from shared.core.user_code import described
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure, Outcome, Visit, VisitOrder, WaveId
from shared.federation.visits.open_visit import OpenVisit, begin_visit
from shared.federation.visits.stacks import StackVisit, fit_stack, slices_of, stacks_of
from shared.federation.visits.uploads import FinishedVisit, UploadBuilder
from shared.runtime.logs import log_context, log_event, log_events
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
        for group in _Visits(experiment, order, states, keep_from, stopped, on_start).run():
            _log_ends(group)
            for finished, wall_s in group:
                on_end(finished.outcome, wall_s)
                uploads.take(finished)
    uploads.sort(order.visits)
    return uploads


def wave_fields(wave_id: WaveId) -> dict[str, object]:
    """The identifiers of a wave as fields of log lines."""
    return {"run": wave_id.run_id, "round": wave_id.round_no, "edge_round": wave_id.edge_round, "wave": wave_id.wave}


def _log_ends(group: Sequence[Timed]) -> None:
    ended, failed = list[dict[str, object]](), list[dict[str, object]]()
    for outcome, wall_s in ((finished.outcome, wall_s) for finished, wall_s in group):
        seat, failure = outcome.seat, outcome.failure
        if failure is not None:
            failed.append({"seat": seat, "reason": failure.reason, "detail": failure.detail})
        else:
            lasted = round(wall_s, 6)
            ended.append({"seat": seat, "kind": outcome.kind, "n_samples": outcome.n_samples, "wall_s": lasted})
    log_events("visit.ended", ended)
    log_events("visit.failed", failed, level=logging.WARNING)


Timed = tuple[FinishedVisit, float]
"""A finished visit and its wall seconds."""
Ending = Callable[[], FinishedVisit]
"""Ends a visit that has trained."""
GROUP_BYTES = 48 * 2**20
"""Most bytes of the models of visits that are run in one group; a visit holds up to `MODELS_A_VISIT` of them."""
MODELS_A_VISIT = 4
GROUP_VISITS = 256
"""Most visits of a group, however small the model: the states of their devices take memory too."""


@dataclass(frozen=True)
class _Visits:
    """Runs the visits of an order in groups; a failure becomes part of a visit's outcome.

    The visits of a group begin, then train, then end: between two trainings, what surrounds them takes two to five
    times as long, as a training fills the caches.
    """

    experiment: Experiment
    order: VisitOrder[Any]
    states: StateStore
    keep_from: Version | None
    stopped: Stopped
    on_start: Callable[[int], None]

    def run(self) -> Iterator[list[Timed]]:
        """Yields the visits of each group once it has ended."""
        vectorised = self.experiment.spec.vectorised
        stacked = [visit for visit in self.order.visits if vectorised and visit.task.kind == "train"]
        others = [visit for visit in self.order.visits if not vectorised or visit.task.kind != "train"]
        size = self._group_size()
        for at in range(0, len(others), size):
            yield self._in_turns(others[at : at + size])
        if vectorised is not None:
            for rows, visits in slices_of(self.experiment, self.order, stacked, vectorised.width):
                yield self._at_once(visits, rows)

    def _group_size(self) -> int:
        """Visits of a group; one where code of a user might see that others have begun, or each augments samples."""
        if self.experiment.has_plugins or self.experiment.spec.augment is not None:
            return 1
        fit = GROUP_BYTES // (MODELS_A_VISIT * max(n_bytes(self.experiment.shapes), 1))
        return min(max(fit, 1), GROUP_VISITS)

    def _in_turns(self, visits: Sequence[Visit]) -> list[Timed]:
        """Runs the visits of a group, which train one after another."""
        began, training_s, endings = time.monotonic(), list[float](), list[Ending | FinishedVisit]()
        for visit, opened in [(visit, self._safely(visit, partial(self._begin, visit))) for visit in visits]:
            started = time.monotonic()
            self._start(visit)
            endings.append(opened if isinstance(opened, FinishedVisit) else self._safely(visit, opened.train))
            training_s.append(time.monotonic() - started)
        finished = [self._ended(visit, ending) for visit, ending in zip(visits, endings, strict=True)]
        around_s = (time.monotonic() - began - sum(training_s)) / len(visits)
        return [(each, own_s + around_s) for each, own_s in zip(finished, training_s, strict=True)]

    def _at_once(self, visits: Sequence[Visit], rows: int) -> list[Timed]:
        """Runs the visits of a group, which train at the same time."""
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
                finished.append(self._ended(each.open.visit, partial(each.end, fit)))
        wall_s = (time.monotonic() - began) / len(visits)
        return [(each, wall_s) for each in finished]

    def _start(self, visit: Visit) -> None:
        self.on_start(visit.seat)
        log_event("visit.begun", level=logging.DEBUG, seat=visit.seat, kind=visit.task.kind)

    def _begin(self, visit: Visit) -> OpenVisit:
        message = self.order.messages[visit.message]
        return begin_visit(self.experiment, self.order, visit, message, self.states, self.stopped, self.keep_from)

    def _join(self, visit: Visit) -> StackVisit:
        return StackVisit.of(self._begin(visit))

    def _ended(self, visit: Visit, ending: Ending | FinishedVisit) -> FinishedVisit:
        return ending if isinstance(ending, FinishedVisit) else self._safely(visit, ending)

    def _safely(self, visit: Visit, work: Callable[[], T]) -> T | FinishedVisit:
        """Does a part of a visit; if it fails, the visit has ended."""
        try:
            with settings_kept() if self.experiment.has_plugins else nullcontext():
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
