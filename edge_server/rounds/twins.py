"""The digital twins of an edge's devices in a round: refreshed before work is planned, corrected by its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.wave import Wave
from shared.federation import visit_estimates
from shared.federation.context import Context
from shared.federation.messages import Task
from shared.run_records.visits import VisitRecord
from shared.simulation import digital_twin
from shared.simulation.cost_model import Cost
from shared.simulation.digital_twin import Sighting, Twin

FORESEEN = frozenset({"unavailable", "busy"})
"""Reasons for which a device gets no request and its twin learns nothing: its telemetry shows them beforehand."""
LONGEST_REASON = 100
"""Bounds the characters of a reason that are kept: an agent may have written it."""


@dataclass
class Twins:
    """The twins of one edge's devices, by seat; empty if the run keeps none."""

    known: dict[int, Twin] = field(default_factory=dict)

    def refresh(self, clock: EdgeClock, seats: Sequence[int], *, new_edge_round: bool) -> None:
        """Refreshes twins with the telemetry of their devices at the clock's instant."""
        for seat in seats:
            twin = self.known.get(seat) or Twin(seat=seat)
            self.known[seat] = digital_twin.refresh(twin, clock.telemetry(twin), new_edge_round=new_edge_round)

    def predict(self, ctx: Context, clock: EdgeClock, tasks: Mapping[int, Task]) -> dict[int, tuple[float, float]]:
        """The seconds that visits are predicted to take, and their standard deviation, by seat."""
        known = {seat: task for seat, task in tasks.items() if seat in self.known and task.kind == "train"}
        return {
            seat: visit_estimates.predicted(ctx, clock.seat(seat), task, self.known[seat])
            for seat, task in known.items()
        }

    def observe_wave(self, ctx: Context, clock: EdgeClock, wave: Wave, visits: Sequence[VisitRecord]) -> None:
        """Updates the twins with the records of a wave's visits."""
        unrequested = wave.dispatch.unrequested
        for visit in visits:
            foreseen = visit.seat in unrequested and visit.reason in FORESEEN
            if visit.seat in wave.dispatch.predicted and not foreseen:
                self._observe_visit(ctx, clock, wave, visit)

    def _observe_visit(self, ctx: Context, clock: EdgeClock, wave: Wave, visit: VisitRecord) -> None:
        twin, task, outcomes = self.known[visit.seat], wave.dispatch.tasks[visit.seat], wave.replies.outcomes
        seat, (mean_s, sd_s) = clock.seat(visit.seat), wave.dispatch.predicted[visit.seat]
        implied = visit_estimates.expected(ctx, seat, visit_estimates.samples_due(ctx, task, seat))
        took_s, ratio = _duration(ctx, visit, implied, twin)
        seen = Sighting(
            round_no=ctx.round_no,
            edge_round=ctx.edge_round,
            wave=ctx.wave,
            at_s=clock.at_s,
            n_trained=outcomes[visit.seat].n_trained if visit.seat in outcomes else 0,
            predicted_s=mean_s,
            predicted_sd_s=sd_s,
            took_s=took_s,
            error_s=None if took_s is None else took_s - mean_s,
            outcome=visit.outcome,
            reason=visit.reason and visit.reason[:LONGEST_REASON],
        )
        real = ctx.spec.clock == "real"
        self.known[visit.seat] = digital_twin.observe(twin, seen, ratio=ratio, energy_j=visit.energy_j, measured=real)


def _duration(ctx: Context, visit: VisitRecord, implied: Cost, twin: Twin) -> tuple[float | None, float | None]:
    """How long a visit took, and the ratio of the seconds of its work to the seconds that its profile implies.

    A visit that was broken off would have taken longer still: its ratio counts only if it exceeds the twin's. With
    `clock: real` the measured seconds count, scaled to the simulated clock, minus the simulated seconds of its links.
    """
    broken_off = visit.outcome == "refused" or (visit.outcome == "failed" and visit.reason == "late")
    if not implied.compute_s or (visit.outcome == "failed" and not broken_off):
        return None, None
    took_s, work_s = visit.simulated_s, visit.compute_s
    if visit.measured_s is not None:
        took_s = visit.measured_s / ctx.spec.time_scale
        work_s = max(took_s - (visit.down_s + visit.up_s or implied.down_s + implied.up_s), 0.0)
    ratio = work_s / implied.compute_s
    if broken_off:
        return None, ratio if ratio > twin.ratio else None
    return took_s, ratio
