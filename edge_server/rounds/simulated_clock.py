"""Simulated time at an edge: who is off, who drops its visit, and what each visit costs.

All of it follows from the spec, the seed and the simulated instant; nothing waits for it. What the model lets happen
(`unavailable`, `dropped`) happens whether the device's real process is there or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shared.federation import visit_estimates
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Outcome, Task
from shared.federation.population import Seat, run_seeds
from shared.simulation import LEAST_FREE, NoLoad, free_share, next_on
from shared.simulation.cost_model import Cost, LinkUse, broken_off, drop_share, upload_cost, visit_cost
from shared.simulation.digital_twin import Telemetry, Twin


@dataclass(frozen=True)
class SimulatedFaults:
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
        round_no: by which seats have collected their samples; 0: all of them.
        at_s: the simulated instant by which it is known how much compute is free.
    """

    experiment: Experiment
    home: int
    profiles: Mapping[int, str] = field(default_factory=dict)
    round_no: int = 0
    at_s: float = 0.0

    def at(self, at_s: float) -> EdgeClock:
        """The same at another instant."""
        return replace(self, at_s=at_s)

    @cached_property
    def _seats(self) -> dict[int, Seat]:
        return {}

    def seat(self, number: int) -> Seat:
        """A seat at this instant: with what it has collected, the compute that is free, maybe its agent's profile."""
        if number not in self._seats:
            seat = self._seated(number)
            free = 1.0 if isinstance(seat.profile.load, NoLoad) else max(self._free(seat), LEAST_FREE)
            if free != 1:
                seat = replace(seat, profile=seat.profile.replace(compute_sps=seat.profile.compute_sps * free))
            self._seats[number] = seat
        return self._seats[number]

    def _seated(self, number: int) -> Seat:
        return self.experiment.seat_in(number, self.round_no, self.profiles.get(number))

    def _free(self, seat: Seat) -> float:
        return free_share(seat.profile.load, self.at_s, run_seeds(self.experiment.spec, f"seat {seat.number}"))

    def telemetry(self, twin: Twin) -> Telemetry:
        """What a twin's worker says of itself at this instant; with `clock: real` its compute is the measured one."""
        number, seat = twin.seat, self._seated(twin.seat)
        seeds, battery_j = run_seeds(self.experiment.spec, f"seat {number}"), seat.profile.battery_j
        slower = twin.ratio if self.experiment.spec.clock == "real" else 1.0
        return Telemetry(
            at_s=self.at_s,
            on=next_on(seat.profile.availability, number, self.at_s, seeds) == self.at_s,
            free_sps=seat.profile.compute_sps * self._free(seat) / slower,
            n_collected=len(seat.train),
            charge=None if battery_j is None else max(1 - twin.spent_j / battery_j, 0.0),
        )

    def faults(
        self, ctx: Context, tasks: Mapping[int, Task], at_s: float, busy: Mapping[int, float]
    ) -> SimulatedFaults:
        """Who of a wave that begins at `at_s` is off, who will drop; evaluation is not part of that world.

        `busy` are seats that are at work until the instants named.
        """
        found = SimulatedFaults()
        for number in sorted(tasks):
            profile = self.seat(number).profile
            if tasks[number].kind == "evaluate":
                continue
            on_s = next_on(profile.availability, number, at_s, run_seeds(self.experiment.spec, f"seat {number}"))
            share = drop_share(profile, ctx.at(seat=number).seed)
            if number in busy:
                found.busy[number] = busy[number]
            elif on_s != at_s:
                found.off[number] = on_s
            elif share is not None:
                found.dropped[number] = share
        return found

    def cost(self, ctx: Context, number: int, use: LinkUse, outcome: Outcome[Any]) -> Cost:
        """What a visit cost that was paid; testing models takes no simulated time."""
        share = 0.0 if outcome.kind == "evaluate" else 1.0
        return self._cost(ctx, number, use, outcome.n_trained, share)

    def upload_cost(self, ctx: Context, number: int, use: LinkUse, wait_s: float) -> Cost:
        """What it cost to wait for so long, and then to be asked for an update and to send it."""
        seat = self.seat(number)
        return upload_cost(seat.profile, seat.latency_to(self.home), use, ctx.at(seat=number).seed, wait_s)

    def dropped_cost(self, ctx: Context, number: int, use: LinkUse, task: Task, share: float) -> Cost:
        """What a visit cost that was dropped: receiving, and a share of the work that was asked for."""
        return self._cost(ctx, number, use, self._dropped_samples(ctx, number, task, share), share)

    def dropped_flops(self, ctx: Context, number: int, task: Task, share: float) -> float:
        """Operations of a visit that was dropped."""
        return self._dropped_samples(ctx, number, task, share) * self.experiment.flops

    def broken_off(self, number: int, cost: Cost, use: LinkUse, flops: float, at_s: float) -> tuple[Cost, LinkUse]:
        """What was done and moved of an exchange that was broken off after so many seconds; see `shared.costs`."""
        return broken_off(self.seat(number).profile, cost, use, flops, at_s)

    def _dropped_samples(self, ctx: Context, number: int, task: Task, share: float) -> float:
        return share * visit_estimates.samples_due(ctx, task, self.seat(number))

    def _cost(self, ctx: Context, number: int, use: LinkUse, n_trained: float, share: float) -> Cost:
        seat, flops = self.seat(number), n_trained * self.experiment.flops
        return visit_cost(seat.profile, seat.latency_to(self.home), use, flops, ctx.at(seat=number).seed, share)
