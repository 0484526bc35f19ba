"""Selection policies: which seats train in a wave, by the spec's `select`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from shared.federation.context import Context, EdgeView
from shared.federation.population import Seat
from shared.federation.visit_estimates import expected, plain_task, samples_due

Choice = Callable[[Context, Sequence[Seat], EdgeView], list[int]]


def select(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    """The seats that train in this edge round, by the spec's `select`."""
    return SELECTION[ctx.spec.select](ctx, seats, view)


def n_wanted(ctx: Context, seats: Sequence[Seat]) -> int:
    """How many of these seats an edge round wants to hear from; with `overselection` more are selected."""
    if ctx.spec.select == "all":
        return len(seats)
    return sum(_fraction_of(ctx, n) for n in Counter(seat.home_edge for seat in seats).values())


def _all(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    return [seat.number for seat in seats]


def _by_home(choose: Choice) -> Choice:
    """A policy that chooses among the seats of each home by itself.

    Guests, whose own edge is lost, are chosen as they would have been at home: faults do not change who is chosen.
    """

    def select(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
        homes = sorted({seat.home_edge for seat in seats})
        parts = [choose(ctx.at(edge=home), [seat for seat in seats if seat.home_edge == home], view) for home in homes]
        return sorted(number for part in parts for number in part)

    return select


def _random(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    """`fraction_train` of the seats, at least one (FedAvg's C), without replacement."""
    n = _n_chosen(ctx, len(seats))
    chosen = ctx.numpy_rng("select").choice(len(seats), size=n, replace=False)
    return [seats[i].number for i in chosen]


def _fastest(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    """As many as `random`, those whose visits are expected to be the shortest; of equals the lower seats."""
    task = plain_task(ctx)
    took = {seat.number: expected(ctx, seat, samples_due(ctx, task, seat)).simulated_s for seat in seats}
    return sorted(took, key=lambda number: (took[number], number))[: _n_chosen(ctx, len(seats))]


def _power_of_choice(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> list[int]:
    """As many as `random`, those of the highest known loss among candidates drawn in proportion to their samples.

    Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
    Strategies, 2020, with the losses that clients sent last (their variant rpow-d). A seat that was not heard of
    yet comes before all others; of equals the lower seat.
    """
    holds = [seat for seat in seats if len(seat.train)]
    weights = np.array([len(seat.train) for seat in holds], np.float64)
    n = min(_n_chosen(ctx, len(seats)), len(holds))
    share = ctx.spec.fraction_candidates or min(2 * ctx.spec.fraction_train, 1.0)
    d = min(max(round(share * len(holds)), n), len(holds))
    if not d:
        return []
    drawn = ctx.numpy_rng("select").choice(len(holds), size=d, replace=False, p=weights / weights.sum())
    candidates = [holds[i].number for i in drawn]
    return sorted(candidates, key=lambda number: (-view.losses.get(number, math.inf), number))[:n]


def _n_chosen(ctx: Context, n: int) -> int:
    """How many of n: what is wanted, and `overselection` beyond."""
    return min(_beyond(ctx, _fraction_of(ctx, n)), n)


def _fraction_of(ctx: Context, n: int) -> int:
    return min(max(round(ctx.spec.fraction_train * n), 1), n)


def _beyond(ctx: Context, n: int) -> int:
    """n and `overselection` beyond; 1.1 times 10 are 11, whatever floating point makes of it."""
    return math.ceil(n * (1 + ctx.spec.overselection) - 1e-9)


SELECTION: dict[str, Choice] = {
    "all": _all,
    "random": _by_home(_random),
    "fastest": _by_home(_fastest),
    "power_of_choice": _by_home(_power_of_choice),
}
