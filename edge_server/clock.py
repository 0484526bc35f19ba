"""Simulated time at an edge: who is off, who drops its visit, and what each visit costs.

All of it follows from the spec, the seed and the simulated instant; nothing waits for it. What the model lets happen
(`unavailable`, `dropped`) happens whether the device's real process is there or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared import policies
from shared.context import Ctx
from shared.costs import Cost, LinkUse, broken_off, drop_share, visit_cost
from shared.lab import Lab
from shared.messages import Outcome, Work
from shared.population import Seat, run_seeds, seated
from shared.profiles import next_on


@dataclass(frozen=True)
class Fates:
    """What the model has in store for the seats of a wave.

    Attributes:
        off: seats whose device is off, with the instant at which it is there again (None: never).
        busy: seats that are still at work on a late update, with the instant at which it is there.
        dropped: seats that drop their visit, with the share of their work after which they do.
    """

    off: dict[int, float | None] = field(default_factory=dict)
    busy: dict[int, float] = field(default_factory=dict)
    dropped: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeClock:
    """Simulated time of the visits to one home.

    Args:
        lab: of the run.
        home: its number.
        profiles: of seats that have their agent's.
    """

    lab: Lab
    home: int
    profiles: Mapping[int, str] = field(default_factory=dict)

    def seat(self, number: int) -> Seat:
        """A seat, with its agent's profile where the spec asks for that."""
        planned = self.lab.seat(number)
        return seated(planned, self.profiles[number]) if number in self.profiles else planned

    def fates(self, ctx: Ctx, works: Mapping[int, Work], at_s: float, busy: Mapping[int, float]) -> Fates:
        """Who of a wave that begins at `at_s` is off, who will drop; evaluation is not part of that world.

        `busy` are seats that are at work until the instants named.
        """
        found = Fates()
        for number in sorted(works):
            profile = self.seat(number).profile
            if works[number].kind == "evaluate":
                continue
            on_s = next_on(profile.availability, number, at_s, run_seeds(self.lab.spec, f"seat {number}"))
            share = drop_share(profile, ctx.at(seat=number).seed)
            if number in busy:
                found.busy[number] = busy[number]
            elif on_s != at_s:
                found.off[number] = on_s
            elif share is not None:
                found.dropped[number] = share
        return found

    def cost(self, ctx: Ctx, number: int, use: LinkUse, outcome: Outcome[Any]) -> Cost:
        """What a visit cost that was paid; testing models takes no simulated time."""
        share = 0.0 if outcome.kind == "evaluate" else 1.0
        return self._cost(ctx, number, use, outcome.n_trained, share)

    def broken_off(
        self, ctx: Ctx, number: int, use: LinkUse, outcome: Outcome[Any], at_s: float
    ) -> tuple[Cost, LinkUse]:
        """What a visit cost that was broken off after so many seconds, and what it had received and sent by then.

        `use` is what the whole visit would have moved.
        """
        profile, flops = self.seat(number).profile, outcome.n_trained * self.lab.flops
        return broken_off(profile, self.cost(ctx, number, use, outcome), use, flops, at_s)

    def dropped_cost(self, ctx: Ctx, number: int, use: LinkUse, work: Work, share: float) -> Cost:
        """What a visit cost that was dropped: receiving, and a share of the work that was asked for."""
        due = policies.samples_due(ctx, work, self.seat(number))
        return self._cost(ctx, number, use, share * due, share)

    def _cost(self, ctx: Ctx, number: int, use: LinkUse, n_trained: float, share: float) -> Cost:
        seat, flops = self.seat(number), n_trained * self.lab.flops
        latency_s = seat.latency_s[self.home] if seat.latency_s else 0.0
        return visit_cost(seat.profile, latency_s, use, flops, ctx.at(seat=number).seed, share)
