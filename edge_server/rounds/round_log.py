"""The log of a round at an edge: a record of each visit, simulated time, and the client states that count next."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_server.rounds.wave import Wave
from edge_server.rounds.wave_timing import VisitCost, WaveTiming
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure
from shared.federation.test_sets import Indices
from shared.run_records.visits import VisitRecord
from shared.runtime.logs import log_context, log_event
from shared.storage.states import Version


def visit_record(wave: Wave, seat: int, visit_cost: VisitCost, began_s: float) -> VisitRecord:
    """The record of one visit.

    Args:
        wave: that has ended.
        seat: the visited seat.
        visit_cost: the simulated cost of the visit.
        began_s: when the wave began, in simulated seconds after the round began.
    """
    dispatch, replies, cost = wave.dispatch, wave.replies, visit_cost.cost
    answer, verdict = replies.outcomes.get(seat), wave.decision.verdicts.get(seat)
    heard = None if seat in wave.decision.unanswered else answer
    outcome, reason = _outcome(wave, seat)
    return VisitRecord(
        seat=seat,
        edge_round=dispatch.wave_id.edge_round,
        wave=dispatch.wave_id.wave,
        outcome=outcome,
        reason=reason,
        label=verdict.label if verdict else None,
        n_samples=answer.n_samples if answer else 0,
        work_share=dispatch.shares.get(seat, 1.0),
        train=heard.train if heard else None,
        received=answer.received if answer else None,
        own=answer.own if answer else None,
        own_on=answer.own_on if answer else {},
        down_bytes=visit_cost.use.down_bytes,
        up_bytes=visit_cost.use.up_bytes,
        report_bytes=visit_cost.report_bytes,
        moved_bytes=_moved_bytes(wave, seat, visit_cost),
        begin_s=began_s,
        down_s=cost.down_s,
        compute_s=cost.compute_s,
        wait_s=cost.wait_s + cost.queue_s,
        up_s=cost.up_s,
        simulated_s=cost.simulated_s,
        predicted_s=dispatch.predicted.get(seat, (None, None))[0],
        measured_s=replies.measured.get(seat),
        energy_j=cost.energy_j,
        fresh_state=answer.fresh_state if answer else False,
        figures={**(heard.figures if heard else {}), **(verdict.figures if verdict else {})},
    )


def _outcome(wave: Wave, seat: int) -> tuple[str, str | None]:
    """The outcome of a visit as records name it, and its reason where it has one."""
    answer, failure = wave.replies.outcomes.get(seat), wave.failed.get(seat)
    refused, verdict = wave.decision.refused, wave.decision.verdicts.get(seat)
    if failure is None and seat in refused:
        return "refused", refused[seat].reason
    if failure is not None or answer is None:
        return "failed", failure.reason if failure else "error"
    if answer.kind == "evaluate":
        return "evaluated", None
    if verdict is not None and not verdict.upload:
        return "refused", verdict.reason
    if answer.kind == "collect":
        return "collected", None
    return ("used", None) if seat in wave.replies.used else ("idle", "no update")


def _moved_bytes(wave: Wave, seat: int, visit_cost: VisitCost) -> int:
    """The bytes of moved samples that the seat has received: they follow its order."""
    moved, links = wave.dispatch.moved_bytes.get(seat, 0), wave.replies.links
    order = links[seat].down_bytes - moved if seat in links else 0
    return min(max(visit_cost.use.down_bytes - order, 0), moved)


@dataclass
class RoundLog:
    """The results of a round so far.

    Attributes:
        experiment: of the run.
        round_no: the round.
        clock_s: when the round began, on the run's simulated clock.
        visits: their records, in order.
        failures: lost contributions.
        retired: seats that take part no more, with the reason.
        base_versions: by seat, the version of the client state that its last valid visit left.
        trained: the seats behind the edge's update that trained on all their own samples.
        shares: the samples of the visits behind it that trained on a share of their task.
        n_used: number of updates in the edge's update.
        late_weight: samples behind the late updates in it.
        simulated_s: duration of the edge rounds so far, without the link to the cloud.
        next_on_s: the simulated instant at which the first of the unavailable devices is available again.
        socket_bytes: size of the bodies that processes exchanged.
        testing_s: wall seconds that visits spent on testing models.
        below_quorum: whether the edge alone would have missed the quorum: the cloud, which counts the visits of all
            edges, may refuse the round and order it again.
    """

    experiment: Experiment
    round_no: int
    clock_s: float = 0.0
    visits: list[VisitRecord] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    retired: dict[int, str] = field(default_factory=dict)
    base_versions: dict[int, Version] = field(default_factory=dict)
    trained: set[int] = field(default_factory=set)
    shares: list[Indices] = field(default_factory=list)
    n_used: int = 0
    late_weight: int = 0
    simulated_s: float = 0.0
    next_on_s: float | None = None
    socket_bytes: int = 0
    testing_s: float = 0.0
    below_quorum: bool = False

    @property
    def n_samples(self) -> int:
        """Samples behind the edge's update: each once, however often it was trained on, plus those of late updates."""
        own = sum(self.experiment.seat_in(seat, self.round_no).n_train for seat in self.trained)
        return own + (len(np.unique(np.concatenate(self.shares))) if self.shares else 0) + self.late_weight

    def record_wave(self, wave: Wave, timing: WaveTiming) -> list[VisitRecord]:
        """Adds a wave; returns the records of its visits."""
        dispatch, decision = wave.dispatch, wave.decision
        began_s = dispatch.at_s - self.clock_s
        visits = [visit_record(wave, n, timing.cost_of_visit(decision, n), began_s) for n in sorted(dispatch.tasks)]
        for visit in visits:
            self._record_training(visit, wave)
        self.visits += visits
        self.failures += wave.failures
        self.simulated_s += timing.duration_s(decision)
        self.socket_bytes += wave.replies.socket_bytes
        self.testing_s += wave.replies.testing_s
        away = [on_s for on_s in (*dispatch.faults.off.values(), *dispatch.faults.busy.values()) if on_s is not None]
        self.next_on_s = min([*away, *([] if self.next_on_s is None else [self.next_on_s])], default=None)
        _log_wave(wave, visits)
        return visits

    def _record_training(self, visit: VisitRecord, wave: Wave) -> None:
        """Notes the client state that counts from now on, and the samples behind the edge's update."""
        seat, replies = visit.seat, wave.replies
        if visit.outcome in ("failed", "evaluated") or seat in wave.dispatch.unrequested:
            return
        verdict = wave.decision.verdicts.get(seat)
        keep = verdict.keep if verdict is not None else None
        keeps = self.experiment.algorithm.on_refusal == "keep" if keep is None else keep
        if self.experiment.clients_keep_state and (visit.outcome != "refused" or keeps or seat in replies.late):
            sent = wave.dispatch.wave_id
            self.base_versions[seat] = Version(sent.round_no, sent.edge_round, sent.wave)
        if seat in replies.used:
            self.n_used += 1
            samples = wave.dispatch.tasks[seat].samples
            if samples is None:
                self.trained.add(seat)
            else:
                self.shares.append(samples.numpy())

    def record_arrival(self, visit: VisitRecord, wave: Wave) -> None:
        """Adds one visit of a wave whose visits count as they arrive."""
        self._record_training(visit, wave)
        self.visits.append(visit)
        self.failures += [failure for failure in wave.failures if failure.seat == visit.seat]
        self.socket_bytes += wave.replies.socket_bytes
        self.testing_s += wave.replies.testing_s
        wave.replies.socket_bytes, wave.replies.testing_s = 0, 0.0

    def record_late_update(self, visit: VisitRecord) -> None:
        """Adds a late update of an earlier round that was used in this one."""
        self.visits.append(visit)
        self.n_used += 1
        self.late_weight += visit.n_samples

    def answer_fields(self) -> dict[str, Any]:
        """The fields of the edge's answer that come from the log."""
        return {
            "lines": tuple(self.visits),
            "failures": tuple(self.failures),
            "retired": self.retired,
            "bases": self.base_versions,
            "simulated_s": self.simulated_s,
            "next_on_s": self.next_on_s,
        }


def _log_wave(wave: Wave, visits: list[VisitRecord]) -> None:
    """Logs each lost contribution of a wave, and the outcomes of its visits."""
    wave_id = wave.dispatch.wave_id
    with log_context(edge_round=wave_id.edge_round, wave=wave_id.wave):
        for lost in wave.failures:
            log_event(
                "contribution.lost", level=logging.WARNING, seat=lost.seat, reason=lost.reason, detail=lost.detail
            )
        log_event("wave.ended", visits=len(visits), **Counter(visit.outcome for visit in visits))
