"""What load and availability are expected to do to the devices of a run, at the beginnings of its rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from shared.core.formatting import duration
from shared.federation.population import Seat, device_seeds
from shared.simulation import Always, NoLoad, free_share, next_on
from shared.simulation.cost_model import Cost
from shared.simulation.load import MIN_FREE, Load, Sinus
from shared.spec.experiment import ExperimentSpec

FELT = 0.01
"""A field that changes every task, or the round, by a smaller share than this has no effect."""
MOST = 100
"""Devices and rounds that are looked at; of more, as many at equal distances."""


def conditions(spec: ExperimentSpec, seats: Sequence[Seat], costs: Sequence[Cost], round_s: float) -> Iterator[str]:
    """Yield a sentence for what is expected, or for what changes nothing.

    Args:
        spec: of the run.
        seats: its devices.
        costs: by device, the expected cost of its task without load.
        round_s: the expected seconds of a round.
    """
    chosen = np.unique(np.linspace(0, len(seats) - 1, MOST).astype(int)).tolist()
    rounds = np.unique(np.linspace(0, spec.num_rounds - 1, MOST).astype(int))
    begins_s = (rounds * round_s).tolist()
    if not spec.sync.devices.asynchronous:
        yield from _availability(spec, [seats[index] for index in chosen], begins_s)
    yield from _load(spec, [(seats[index], costs[index]) for index in chosen], begins_s)


def _availability(spec: ExperimentSpec, seats: Sequence[Seat], begins_s: Sequence[float]) -> Iterator[str]:
    kinds = sorted({seat.profile.availability.name for seat in seats} - {Always().name})
    if not kinds:
        return
    on = [[_is_on(spec, seat, at_s) for seat in seats] for at_s in begins_s]
    shares = [sum(row) / len(row) for row in on]
    if min(shares) == 1:
        until = f"the {duration(begins_s[-1])} until the last round begins"
        yield f"without effect: availability {', '.join(kinds)}: no device is off when a round begins, in {until}"
        return
    mean, least = _percent(sum(shares) / len(shares)), _percent(min(shares))
    yield f"expected: {mean} of devices are on when a round begins, at least {least}"


def _is_on(spec: ExperimentSpec, seat: Seat, at_s: float) -> bool:
    return next_on(seat.profile.availability, seat.number, at_s, device_seeds(spec, seat.number)) == at_s


def _load(spec: ExperimentSpec, costs: Sequence[tuple[Seat, Cost]], begins_s: Sequence[float]) -> Iterator[str]:
    loaded = [(seat, cost) for seat, cost in costs if not isinstance(seat.profile.load, NoLoad)]
    if not loaded:
        return
    kinds = ", ".join(sorted({seat.profile.load.name for seat, _ in loaded}))
    free = [[_free(spec, seat, at_s) for at_s in begins_s] for seat, _ in loaded]
    longer = [
        cost.compute_s * (1 / min(shares) - 1) / max(cost.simulated_s, 1e-12)
        for (_, cost), shares in zip(loaded, free, strict=True)
    ]
    if max(longer) < FELT:
        worst, cost = max(longer), loaded[int(np.argmax(longer))][1]
        compute = f"compute is {duration(cost.compute_s)} of {duration(cost.simulated_s)}"
        yield f"without effect: load {kinds} lengthens a task by at most {100 * worst:.1f} %: {compute}"
        return
    mean, least = _percent(float(np.mean(free))), _percent(min(map(min, free)))
    when = "when a round begins; the times of tasks above are without load"
    yield f"expected: load {kinds} leaves {mean} of compute free, at least {least}, {when}"
    yield from _during_tasks(loaded)


def _during_tasks(costs: Sequence[tuple[Seat, Cost]]) -> Iterator[str]:
    """A sentence for each load that is to change during tasks, but changes too slowly for that."""
    longest: dict[Load, float] = {}
    for seat, cost in costs:
        load = seat.profile.load
        if not isinstance(load, NoLoad) and load.during_tasks:
            longest[load] = max(longest.get(load, 0.0), cost.compute_s / max(load.low, MIN_FREE))
    for load, most_s in longest.items():
        every_s = load.period_s / (2 * math.pi) if isinstance(load, Sinus) else getattr(load, "every_s", 0.0)
        if most_s < FELT * every_s:
            yield f"without effect: load {load.name} changes during at most {100 * most_s / every_s:.1f} % of tasks"


def _free(spec: ExperimentSpec, seat: Seat, at_s: float) -> float:
    return max(free_share(seat.profile.load, at_s, device_seeds(spec, seat.number)), MIN_FREE)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
