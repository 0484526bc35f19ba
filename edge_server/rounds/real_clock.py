"""`clock: real` at an edge: each seat gets an order of its own, and deadlines are instants of the wall clock.

Only here does the wall clock decide which updates are used: a seat that has not answered by the deadline is `late`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_server.rounds.wave import Deadline, VisitRequest
from shared.federation.experiment import Experiment
from shared.federation.messages import Outcome, RoundOrder, Task, WaveId
from shared.federation.placements import EdgePlacement
from shared.federation.real_time import PROFILE_HEADER, RealDuration, longest_s
from shared.spec.experiment import ExperimentSpec


def round_deadline(spec: ExperimentSpec) -> Deadline:
    """The end of an edge round that begins now; never with `clock: simulated`."""
    return _deadline(spec, spec.round_deadline_s, "the edge round")


def report_deadline(spec: ExperimentSpec, of_round: Deadline) -> Deadline:
    """The end of the wait for the answers of a wave that begins now: the earlier of its report and round deadlines."""
    found = _deadline(spec, spec.report_deadline_s, "the announcements of a dispatch")
    return min(found, of_round, key=lambda deadline: deadline.at)


def _deadline(spec: ExperimentSpec, limit_s: float | None, what: str) -> Deadline:
    if spec.clock == "simulated" or limit_s is None:
        return Deadline()
    wall_s = limit_s * spec.time_scale
    return Deadline(time.monotonic() + wall_s, f"the {wall_s:g} s of {what}")


@dataclass(frozen=True)
class RealClock:
    """How orders to agents differ with `clock: real`; with `clock: simulated` they do not."""

    experiment: Experiment
    order: RoundOrder[Any]
    placement: EdgePlacement

    @property
    def on(self) -> bool:
        """Whether devices wait for as long as the simulation says."""
        return self.experiment.spec.clock == "real"

    def orders(self, by_agent: Mapping[str, list[VisitRequest]]) -> list[tuple[str, list[VisitRequest]]]:
        """The requests of each order: one order per agent; with `clock: real` one per seat, which wait in parallel."""
        if not self.on:
            return sorted(by_agent.items())
        return [(agent, [item]) for agent, items in sorted(by_agent.items()) for item in items]

    def seat_key(self, seats: Sequence[int]) -> Sequence[int]:
        """The end of an order's key: with `clock: real` an agent gets several orders in one wave."""
        return seats if self.on else ()

    def headers(self, seat: int) -> dict[str, str]:
        """The headers from which a device knows how long to wait."""
        profile = self.placement.profile(seat)
        return {PROFILE_HEADER: profile} if self.on and profile is not None else {}

    def longest_s(self, seat: int, task: Task | None, n_bytes: int) -> float:
        """Wall seconds that a seat may wait beside its real computing; without a task, to send its update."""
        if not self.on:
            return 0.0
        ctx = self.experiment.ctx(phase=self.order.phase, round_no=self.order.round_no, n_clients=self.order.n_clients)
        found = self.experiment.seat(seat, self.placement.profile(seat))
        return longest_s(self.experiment, ctx.at(edge=self.order.edge), found, task or Task(steps=1), n_bytes)

    def own_wall_s(self, wave_id: WaveId, outcome: Outcome[Any]) -> float:
        """Wall seconds that a simulated visit of the edge's own worker takes; it has no link."""
        if not self.on:
            return 0.0
        ctx = self.experiment.ctx(phase=self.order.phase, round_no=wave_id.round_no, n_clients=self.order.n_clients)
        ctx = ctx.at(edge=self.order.edge, edge_round=wave_id.edge_round, wave=wave_id.wave)
        share = 0.0 if outcome.kind == "evaluate" else 1.0
        return RealDuration(self.experiment, ctx, self.experiment.seat(outcome.seat), outcome.n_trained, share).wall_s()
