"""`clock: real` at an edge: each seat is asked by itself, and deadlines are instants of this world.

This is the one place where the wall clock decides what is used: who has not answered by then is `late`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_server.rounds.wave import Deadline, VisitRequest
from shared.federation.experiment import Experiment
from shared.federation.messages import EdgePlacement, Outcome, RoundOrder, Task, WaveId
from shared.federation.timeouts import PROFILE_HEADER, RealDuration, longest_s
from shared.spec.experiment import ExperimentSpec


def round_deadline(spec: ExperimentSpec) -> Deadline:
    """The end of an edge round that begins now; never, where that is the model's to say."""
    return _deadline(spec, spec.round_deadline_s, "the edge round")


def report_deadline(spec: ExperimentSpec, of_round: Deadline) -> Deadline:
    """The end of the wait for the answers of a wave that begins now: it decides by those, or its edge round is over."""
    found = _deadline(spec, spec.report_deadline_s, "a wave's reports")
    return min(found, of_round, key=lambda deadline: deadline.at)


def _deadline(spec: ExperimentSpec, limit_s: float | None, what: str) -> Deadline:
    if spec.clock == "simulated" or limit_s is None:
        return Deadline()
    wall_s = limit_s * spec.time_scale
    return Deadline(time.monotonic() + wall_s, f"the {wall_s:g} s of {what}")


@dataclass(frozen=True)
class RealClock:
    """How orders to agents differ with `clock: real`; without it, in nothing."""

    experiment: Experiment
    order: RoundOrder[Any]
    placement: EdgePlacement

    @property
    def on(self) -> bool:
        """Whether devices wait."""
        return self.experiment.spec.clock == "real"

    def orders(self, by_agent: Mapping[str, list[VisitRequest]]) -> list[tuple[str, list[VisitRequest]]]:
        """What is asked of whom: one order an agent, or one a seat, since modelled devices work side by side."""
        if not self.on:
            return sorted(by_agent.items())
        return [(agent, [item]) for agent, items in sorted(by_agent.items()) for item in items]

    def lane(self, seats: Sequence[int]) -> Sequence[int]:
        """What tells the orders of one wave to one agent apart."""
        return seats if self.on else ()

    def headers(self, seat: int) -> dict[str, str]:
        """What a device must know to wait as long as the model says."""
        profile = self.placement.profiles.get(seat)
        return {PROFILE_HEADER: profile} if self.on and profile is not None else {}

    def longest_s(self, seat: int, task: Task | None, n_bytes: int) -> float:
        """Wall seconds that a seat may wait by the model (None: to send its update), beside what it computes here."""
        if not self.on:
            return 0.0
        ctx = self.experiment.ctx(phase=self.order.phase, round_no=self.order.round_no, n_clients=self.order.n_clients)
        seated = self.experiment.seat(seat, self.placement.profiles.get(seat))
        return longest_s(self.experiment, ctx.at(edge=self.order.edge), seated, task or Task(steps=1), n_bytes)

    def own_wall_s(self, stage: WaveId, outcome: Outcome[Any]) -> float:
        """Wall seconds that a visit of the edge's own worker takes by the model: it has no link."""
        if not self.on:
            return 0.0
        ctx = self.experiment.ctx(phase=self.order.phase, round_no=stage.round_no, n_clients=self.order.n_clients)
        ctx = ctx.at(edge=self.order.edge, edge_round=stage.edge_round, wave=stage.wave)
        share = 0.0 if outcome.kind == "evaluate" else 1.0
        return RealDuration(self.experiment, ctx, self.experiment.seat(outcome.seat), outcome.n_trained, share).wall_s()
