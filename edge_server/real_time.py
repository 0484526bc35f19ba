"""`clock: real` at an edge: each seat is asked by itself, and an edge round's deadline is an instant of this world.

This is the one place where the wall clock decides what is used: who has not answered by then is `late`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_server.wave import Asked
from shared.lab import Lab
from shared.messages import Outcome, RoundOrder, Seating, Stage, Work
from shared.pace import PROFILE_HEADER, Paced, longest_s, seat_with
from shared.spec import ExperimentSpec


def deadline_at(spec: ExperimentSpec) -> float:
    """The instant (monotonic) at which an edge round that begins now ends; never, where that is the model's to say."""
    if spec.clock == "simulated" or spec.round_deadline_s is None:
        return math.inf
    return time.monotonic() + spec.round_deadline_s * spec.time_scale


@dataclass(frozen=True)
class RealTime:
    """How orders to agents differ with `clock: real`; without it, in nothing."""

    lab: Lab
    order: RoundOrder[Any]
    seating: Seating

    @property
    def on(self) -> bool:
        """Whether devices wait."""
        return self.lab.spec.clock == "real"

    def orders(self, by_agent: Mapping[str, list[Asked]]) -> list[tuple[str, list[Asked]]]:
        """What is asked of whom: one order an agent, or one a seat, since modelled devices work side by side."""
        if not self.on:
            return sorted(by_agent.items())
        return [(agent, [item]) for agent, items in sorted(by_agent.items()) for item in items]

    def lane(self, seats: Sequence[int]) -> Sequence[int]:
        """What tells the orders of one wave to one agent apart."""
        return seats if self.on else ()

    def headers(self, seat: int) -> dict[str, str]:
        """What a device must know to wait as long as the model says."""
        profile = self.seating.profiles.get(seat)
        return {PROFILE_HEADER: profile} if self.on and profile is not None else {}

    def longest_s(self, seat: int, work: Work | None, n_bytes: int) -> float:
        """Wall seconds that a seat may wait by the model (None: to send its update), beside what it computes here."""
        if not self.on:
            return 0.0
        ctx = self.lab.ctx(phase=self.order.phase, round_no=self.order.round_no, n_clients=self.order.n_clients)
        seated = seat_with(self.lab, seat, self.seating.profiles.get(seat))
        return longest_s(ctx.at(edge=self.order.edge), seated, work or Work(steps=1), n_bytes)

    def own_wall_s(self, stage: Stage, outcome: Outcome[Any]) -> float:
        """Wall seconds that a visit of the edge's own worker takes by the model: it has no link."""
        if not self.on:
            return 0.0
        ctx = self.lab.ctx(phase=self.order.phase, round_no=stage.round_no, n_clients=self.order.n_clients)
        ctx = ctx.at(edge=self.order.edge, edge_round=stage.edge_round, wave=stage.wave)
        share = 0.0 if outcome.kind == "evaluate" else 1.0
        return Paced(self.lab, ctx, self.lab.seat(outcome.seat), outcome.n_trained, share).wall_s()

    def too_late(self, agent: str, silent_s: float) -> str:
        """What is said of a seat that did not answer in time: whether it was slow or silent, its last word tells."""
        spec = self.lab.spec
        wall_s = (spec.round_deadline_s or 0.0) * spec.time_scale
        return f"no answer within the {wall_s:g} s of the edge round; agent {agent} was heard {silent_s:.1f} s ago"
