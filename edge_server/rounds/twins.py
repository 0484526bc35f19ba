"""The twins of one home's workers in a round: looked at before shares are planned, taught by what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.wave import Wave
from edge_server.rounds.wave_timing import WaveTiming
from shared.federation import visit_estimates
from shared.federation.context import Context
from shared.federation.messages import Task
from shared.run_records.visits import VisitRecord
from shared.simulation import digital_twin
from shared.simulation.cost_model import Cost
from shared.simulation.digital_twin import Sighting, Twin

MODEL_SAYS = frozenset({"unavailable", "busy"})
"""Reasons why nobody was asked from which nothing is learned of a worker: its telemetry says so beforehand."""
LONGEST_REASON = 100
"""Characters of a reason that are kept: it may be an agent's own word."""


@dataclass
class Twins:
    """The twins of one home, by seat. Where none are kept, there are none."""

    known: dict[int, Twin] = field(default_factory=dict)

    def look(self, clock: EdgeClock, seats: Sequence[int], *, new_edge_round: bool) -> None:
        """Take note of what workers say of themselves at the clock's instant."""
        for seat in seats:
            twin = self.known.get(seat) or Twin(seat=seat)
            self.known[seat] = digital_twin.refresh(twin, clock.telemetry(twin), new_edge_round=new_edge_round)

    def predict(self, ctx: Context, clock: EdgeClock, tasks: Mapping[int, Task]) -> dict[int, tuple[float, float]]:
        """Seconds that visits are predicted to take, with their standard deviation."""
        known = {seat: task for seat, task in tasks.items() if seat in self.known and task.kind == "train"}
        return {
            seat: visit_estimates.predicted(ctx, clock.seat(seat), task, self.known[seat])
            for seat, task in known.items()
        }

    def note(self, ctx: Context, wave: Wave, arrivals: WaveTiming, lines: Sequence[VisitRecord]) -> None:
        """Learn from a wave whose visits have been written down."""
        for line in lines:
            off = line.seat in wave.unasked and line.reason in MODEL_SAYS
            if line.seat in wave.predicted and not off:
                self._note(ctx, wave, arrivals, line)

    def _note(self, ctx: Context, wave: Wave, arrivals: WaveTiming, line: VisitRecord) -> None:
        clock, twin, task = arrivals.clock, self.known[line.seat], arrivals.tasks[line.seat]
        seat, (mean_s, sd_s) = clock.seat(line.seat), wave.predicted[line.seat]
        implied = visit_estimates.expected(ctx, seat, visit_estimates.samples_due(ctx, task, seat))
        took_s, ratio = _came(ctx, line, implied, twin)
        seen = Sighting(
            round_no=ctx.round_no,
            edge_round=ctx.edge_round,
            wave=ctx.wave,
            at_s=clock.at_s,
            n_trained=wave.outcomes[line.seat].n_trained if line.seat in wave.outcomes else 0,
            predicted_s=mean_s,
            predicted_sd_s=sd_s,
            took_s=took_s,
            error_s=None if took_s is None else took_s - mean_s,
            outcome=line.outcome,
            reason=line.reason and line.reason[:LONGEST_REASON],
        )
        real = ctx.spec.clock == "real"
        self.known[line.seat] = digital_twin.observe(twin, seen, ratio=ratio, energy_j=line.energy_j, measured=real)


def _came(ctx: Context, line: VisitRecord, implied: Cost, twin: Twin) -> tuple[float | None, float | None]:
    """How long a visit took, and the ratio of its work's seconds to those implied.

    Of one that was broken off it is known that it takes longer still: that is learned where the twin thought otherwise.
    With `clock: real` what was measured counts, on the simulated clock's scale, less what its links take by the model.
    """
    broken_off = line.outcome == "refused" or (line.outcome == "failed" and line.reason == "late")
    if not implied.compute_s or (line.outcome == "failed" and not broken_off):
        return None, None
    took_s, work_s = line.simulated_s, line.compute_s
    if line.measured_s is not None:
        took_s = line.measured_s / ctx.spec.time_scale
        work_s = max(took_s - (line.down_s + line.up_s or implied.down_s + implied.up_s), 0.0)
    ratio = work_s / implied.compute_s
    if broken_off:
        return None, ratio if ratio > twin.ratio else None
    return took_s, ratio
