"""The digital twins of an edge's devices in a round: refreshed before work is planned, corrected by its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.wave import Wave
from shared.federation import visit_estimates
from shared.federation.context import Context
from shared.federation.messages import Task
from shared.run_records.visits import VisitRecord
from shared.runtime.cpu_use import CpuUse
from shared.simulation import REFERENCE_FLOPS, digital_twin
from shared.simulation.cost_model import Cost
from shared.simulation.digital_twin import Twin, VisitObservation
from shared.simulation.telemetry import TelemetrySpec

FORESEEN = frozenset({"unavailable", "busy"})
"""Reasons for which a device gets no request and its twin learns nothing: its telemetry shows them beforehand."""
MAX_REASON_CHARS = 100
"""Bounds the characters of a reason that are kept: an agent may have written it."""


@dataclass
class Twins:
    """The twins of one edge's devices, by seat; empty if the run keeps none.

    Attributes:
        known: the twins.
        telemetry: how devices report, where they do in messages; the edge's own worker knows itself.
        cpu_of: with `clock: real`, returns what a seat's process last reported of the CPUs of its container.
        round_began_s: when the round began, on the run's clock; an edge listens to a new device from then on.
    """

    known: dict[int, Twin] = field(default_factory=dict)
    telemetry: TelemetrySpec | None = None
    round_began_s: float = 0.0
    cpu_of: Callable[[int], CpuUse | None] = lambda seat: None

    def __post_init__(self) -> None:
        self._n_before = {seat: twin.heard.n_sent for seat, twin in self.known.items() if twin.heard is not None}

    def refresh(self, clock: EdgeClock, seats: Sequence[int], *, new_edge_round: bool) -> EdgeClock:
        """Refreshes twins with the telemetry of their devices at the clock's instant.

        Returns:
            The clock of an edge that knows what these twins know.
        """
        clock = self.listen(clock, seats)
        for seat in seats:
            twin = self.known.get(seat) or Twin(seat=seat)
            if self.telemetry is None or twin.heard is None:
                known = clock.telemetry(twin)
            else:
                known = clock.estimated(seat, twin.heard, self.telemetry)
            self.known[seat] = digital_twin.refresh(twin, known, new_edge_round=new_edge_round)
        return clock

    def listen(self, clock: EdgeClock, seats: Iterable[int]) -> EdgeClock:
        """Reads the messages of these devices that have arrived at the clock's instant, where telemetry comes so.

        With `clock: real` they are the heartbeats of processes whose containers have a CPU limit.

        Returns:
            The clock of an edge that knows the estimates of all its twins.
        """
        if self.telemetry is None:
            return clock.measured({seat: cpu for seat in seats if (cpu := self.cpu_of(seat)) is not None})
        for seat in seats:
            if clock.seat(seat).role != "worker":
                twin = self.known.get(seat) or Twin(seat=seat)
                self.known[seat] = clock.listen(twin, self.telemetry, self.round_began_s)
        heard = {seat: twin.heard for seat, twin in self.known.items() if twin.heard is not None}
        return clock.believing({seat: clock.estimated(seat, heard[seat], self.telemetry).free_sps for seat in heard})

    def end_round(self, clock: EdgeClock, seats: Collection[int]) -> tuple[int, float]:
        """Reads the messages that have come by the end of a round; those of devices that have left are forgotten.

        Returns:
            Bytes and joules of the messages that were read in this round.
        """
        if self.telemetry is None:
            return 0, 0.0
        self.listen(clock, sorted(seats))
        n_bytes, energy_j = 0, 0.0
        for seat, twin in sorted(self.known.items()):
            if twin.heard is not None and seat in seats:
                sent = (twin.heard.n_sent - self._n_before.get(seat, 0)) * self.telemetry.message_bytes
                n_bytes, energy_j = n_bytes + sent, energy_j + sent * clock.seat(seat).profile.j_per_byte_up
            self.known[seat] = twin if seat in seats else twin.replace(heard=None)
        return n_bytes, energy_j

    def spend(self, energy_j: Mapping[int, float]) -> None:
        """Takes the energy of sending collected samples from the batteries of devices."""
        for seat, spent_j in energy_j.items():
            twin = self.known.get(seat) or Twin(seat=seat)
            self.known[seat] = twin.replace(spent_j=twin.spent_j + spent_j)

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
            twin = self.known.get(visit.seat)
            if foreseen and visit.reason == "unavailable" and twin is not None and twin.heard is not None:
                found_off = twin.heard.replace(found_off_s=clock.at_s)
                self.known[visit.seat] = twin.replace(heard=found_off)
            if visit.seat in wave.dispatch.predicted and not foreseen:
                self._observe_visit(ctx, clock, wave, visit)

    def _observe_visit(self, ctx: Context, clock: EdgeClock, wave: Wave, visit: VisitRecord) -> None:
        twin, task, outcomes = self.known[visit.seat], wave.dispatch.tasks[visit.seat], wave.replies.outcomes
        seat, (mean_s, sd_s) = clock.seat(visit.seat), wave.dispatch.predicted[visit.seat]
        implied = visit_estimates.expected(ctx, seat, visit_estimates.samples_due(ctx, task, seat))
        took_s, ratio = _duration(ctx, visit, implied, twin)
        n_trained = outcomes[visit.seat].n_trained if visit.seat in outcomes else 0
        seen = VisitObservation(
            round_no=ctx.round_no,
            edge_round=ctx.edge_round,
            wave=ctx.wave,
            at_s=clock.at_s,
            n_trained=n_trained,
            predicted_s=mean_s,
            predicted_sd_s=sd_s,
            took_s=took_s,
            error_s=None if took_s is None else took_s - mean_s,
            outcome=visit.outcome,
            reason=visit.reason and visit.reason[:MAX_REASON_CHARS],
            **(_compared(clock, twin, visit, n_trained, took_s) if twin.heard is not None else {}),
        )
        real = ctx.spec.clock == "real"
        self.known[visit.seat] = digital_twin.observe(twin, seen, ratio=ratio, energy_j=visit.energy_j, measured=real)


def _compared(
    clock: EdgeClock, twin: Twin, visit: VisitRecord, n_trained: int, took_s: float | None
) -> dict[str, float]:
    """What was known of a device by messages when its task was planned, beside what the task had."""
    found = {"telemetry_age_s": clock.at_s - twin.telemetry.at_s, "estimated_sps": twin.telemetry.free_sps}
    if took_s is not None and visit.compute_s:
        found["actual_sps"] = n_trained * clock.experiment.flops / REFERENCE_FLOPS / visit.compute_s
    return {**found, "energy_j": visit.energy_j}


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
