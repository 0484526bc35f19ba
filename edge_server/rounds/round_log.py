"""The book of a round at an edge: a line for each visit, simulated time, and which states count from now on.

The record of a round's visits: one line for each.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_server.rounds.wave import Wave
from edge_server.rounds.wave_timing import VisitCost, WaveTiming
from shared.federation.experiment import Experiment
from shared.federation.hooks import Verdict
from shared.federation.messages import Failure, Task
from shared.federation.population import Seat
from shared.federation.test_sets import Indices
from shared.run_records.visits import VisitRecord
from shared.runtime.logs import log_context, log_event
from shared.storage.states import Version


def seat_line(wave: Wave, seat: Seat, verdict: Verdict | None, paid: VisitCost) -> VisitRecord:
    """What came of one seat's visit in a wave, and what it cost in the modelled world."""
    number, cost = seat.number, paid.cost
    outcome = wave.outcomes.get(number)
    found, reason = _outcome(wave, number, verdict)
    heard = None if number in wave.unheard else outcome
    return VisitRecord(
        seat=number,
        edge_round=wave.stage.edge_round,
        wave=wave.stage.wave,
        outcome=found,
        reason=reason,
        label=verdict.label if verdict else None,
        n_samples=outcome.n_samples if outcome else 0,
        work_share=wave.shares.get(number, 1.0),
        train=heard.train if heard else None,
        received=outcome.received if outcome else None,
        own=outcome.own if outcome else None,
        own_on=outcome.own_on if outcome else {},
        down_bytes=paid.use.down_bytes,
        up_bytes=paid.use.up_bytes,
        report_bytes=paid.report_bytes,
        moved_bytes=_moved_bytes(wave, number, paid),
        begin_s=wave.began_s,
        down_s=cost.down_s,
        compute_s=cost.compute_s,
        wait_s=cost.wait_s,
        up_s=cost.up_s,
        simulated_s=cost.simulated_s,
        predicted_s=wave.predicted.get(number, (None, None))[0],
        measured_s=wave.measured.get(number),
        energy_j=cost.energy_j,
        fresh_state=outcome.fresh_state if outcome else False,
        figures={**(heard.figures if heard else {}), **(verdict.figures if verdict else {})},
    )


def _outcome(wave: Wave, number: int, verdict: Verdict | None) -> tuple[str, str | None]:
    """The word for a visit in the record, and the reason where there is one."""
    outcome, failure = wave.outcomes.get(number), wave.failed().get(number)
    if failure is None and number in wave.refused:
        return "refused", wave.refused[number].reason
    if failure is not None or outcome is None:
        return "failed", failure.reason if failure else "error"
    if outcome.kind == "evaluate":
        return "evaluated", None
    if verdict is not None and not verdict.upload:
        return "refused", verdict.reason
    if outcome.kind == "collect":
        return "collected", None
    return ("used", None) if number in wave.used else ("idle", "no update")


def _moved_bytes(wave: Wave, number: int, paid: VisitCost) -> int:
    """Of the bytes that the seat received, those of moved samples: they follow its order."""
    moved = wave.moved_bytes.get(number, 0)
    order = wave.links[number].down_bytes - moved if number in wave.links else 0
    return min(max(paid.use.down_bytes - order, 0), moved)


@dataclass
class RoundLog:
    """What a round has come to so far.

    Attributes:
        bases: by seat, the version left behind by its last visit that counts.
        trained_on: the samples behind the edge's update, visit by visit.
        late_weight: of late updates in it.
        simulated_s: of the edge rounds so far, without the link to the cloud.
        next_on_s: the simulated instant at which the first of the devices that were off is there again.
    """

    experiment: Experiment
    round_no: int
    visits: list[VisitRecord] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    retired: dict[int, str] = field(default_factory=dict)
    bases: dict[int, Version] = field(default_factory=dict)
    trained_on: list[Indices] = field(default_factory=list)
    n_used: int = 0
    late_weight: int = 0
    simulated_s: float = 0.0
    next_on_s: float | None = None
    socket_bytes: int = 0
    testing_s: float = 0.0

    @property
    def n_samples(self) -> int:
        """Samples behind the edge's update, each once however often it was trained on, and late ones."""
        fresh = len(np.unique(np.concatenate(self.trained_on))) if self.trained_on else 0
        return fresh + self.late_weight

    def note(
        self,
        wave: Wave,
        tasks: Mapping[int, Task],
        verdicts: Mapping[int, Verdict],
        arrivals: WaveTiming,
    ) -> list[VisitRecord]:
        """Write a wave down; its lines."""
        lines = [
            seat_line(wave, self.experiment.seat(n), verdicts.get(n), arrivals.paid(wave, n)) for n in sorted(tasks)
        ]
        for line in lines:
            self._remember(line, tasks[line.seat], verdicts.get(line.seat), wave)
        self.visits += lines
        self.failures += wave.failures
        self.simulated_s += arrivals.lasted_s(wave)
        self.socket_bytes += wave.socket_bytes
        self.testing_s += wave.testing_s
        _told(wave, lines)
        return lines

    def _remember(self, line: VisitRecord, task: Task, verdict: Verdict | None, wave: Wave) -> None:
        """Which state counts from now on, and whose samples stand behind the edge's update."""
        if line.outcome in ("failed", "evaluated") or line.seat in wave.unasked:
            return
        own = verdict.keep if verdict is not None else None
        keeps = self.experiment.algorithm.on_refusal == "keep" if own is None else own
        if line.outcome != "refused" or keeps or line.seat in wave.late:
            self.bases[line.seat] = Version(self.round_no, line.edge_round, line.wave)
        if line.seat in wave.used:
            self.n_used += 1
            samples = (
                self.experiment.seat_in(line.seat, self.round_no).train
                if task.samples is None
                else task.samples.numpy()
            )
            self.trained_on.append(samples)

    def note_late(self, line: VisitRecord) -> None:
        """Write down a late update that was used now."""
        self.visits.append(line)
        self.n_used += 1
        self.late_weight += line.n_samples

    def wait_for(self, instants: list[float]) -> None:
        """Note when devices are there again."""
        self.next_on_s = min([*instants, *([] if self.next_on_s is None else [self.next_on_s])], default=None)

    def record(self) -> dict[str, Any]:
        """The fields of the edge's answer."""
        return {
            "lines": tuple(self.visits),
            "failures": tuple(self.failures),
            "retired": self.retired,
            "bases": self.bases,
            "simulated_s": self.simulated_s,
            "next_on_s": self.next_on_s,
        }


def _told(wave: Wave, lines: list[VisitRecord]) -> None:
    """Log what came of a wave: what was lost, one by one, and how the others ended."""
    with log_context(edge_round=wave.stage.edge_round, wave=wave.stage.wave):
        for lost in wave.failures:
            log_event(
                "contribution.lost", level=logging.WARNING, seat=lost.seat, reason=lost.reason, detail=lost.detail
            )
        log_event("wave.ended", visits=len(lines), **Counter(line.outcome for line in lines))
