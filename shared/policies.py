"""Selection and scheduling by name, as the spec says; they serve any algorithm.

A policy is a function of (ctx, seats): its randomness comes from the edge's stream, its answer never depends on
arrival or on wall time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch

from shared.context import Ctx
from shared.messages import Work
from shared.population import Seat


def select(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
    """The seats that train in this edge round, by the spec's `select`."""
    return SELECTION[ctx.spec.select](ctx, seats)


def n_wanted(ctx: Ctx, seats: Sequence[Seat]) -> int:
    """How many of these seats an edge round wants to hear from; with `overselection` more are selected."""
    if ctx.spec.select == "all":
        return len(seats)
    return sum(_fraction_of(ctx, n) for n in Counter(seat.home for seat in seats).values())


def schedule(ctx: Ctx, seats: Sequence[Seat]) -> dict[int, Work]:
    """The work of each chosen seat, by the spec's `schedule`."""
    return SCHEDULE[ctx.spec.schedule](ctx, seats)


def plain_work(ctx: Ctx) -> Work:
    """The spec's epochs and batch size; models are tested in the first edge round of a round that is due."""
    due = ctx.edge_round == 0 and ctx.wave == 0 and evaluation_due(ctx)
    return Work(epochs=ctx.spec.local_epochs, batch_size=ctx.spec.batch_size, evaluate=due)


def evaluation_due(ctx: Ctx) -> bool:
    """Whether this round is one of the `eval_every`."""
    return ctx.round_no % ctx.spec.eval_every == 0


def samples_due(ctx: Ctx, work: Work, seat: Seat) -> int:
    """Samples that a visit of this work passes through training, counted again in each epoch, if it ends."""
    n = len(seat.train) if work.samples is None else len(work.samples)
    if work.kind != "train" or not n:
        return 0
    if work.steps is None:
        return n * (ctx.spec.local_epochs if work.epochs is None else work.epochs)
    full, rest = divmod(work.steps, -(-n // work.batch_size))
    return full * n + min(rest * work.batch_size, n)


def _all(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
    return [seat.number for seat in seats]


def _random(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
    """`fraction_train` of the seats of each home, at least one (FedAvg's C), without replacement.

    Guests, whose own edge is lost, are drawn as they would have been at home: faults do not change who is chosen.
    """
    homes = sorted({seat.home for seat in seats})
    return sorted(
        number for home in homes for number in _drawn(ctx.at(edge=home), [s for s in seats if s.home == home])
    )


def _drawn(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
    n = _beyond(ctx, _fraction_of(ctx, len(seats)))
    chosen = ctx.numpy_rng("select").choice(len(seats), size=min(n, len(seats)), replace=False)
    return [seats[i].number for i in chosen]


def _fraction_of(ctx: Ctx, n: int) -> int:
    return min(max(round(ctx.spec.fraction_train * n), 1), n)


def _beyond(ctx: Ctx, n: int) -> int:
    """n and `overselection` beyond; 1.1 times 10 are 11, whatever floating point makes of it."""
    return math.ceil(n * (1 + ctx.spec.overselection) - 1e-9)


def _own_data(ctx: Ctx, seats: Sequence[Seat]) -> dict[int, Work]:
    """Every seat trains on what it holds; one that holds nothing (an edge's worker) is not visited."""
    work = plain_work(ctx)
    return {seat.number: work for seat in seats if len(seat.train)}


def _equal(ctx: Ctx, seats: Sequence[Seat]) -> dict[int, Work]:
    """The chosen seats' samples together, shuffled and dealt evenly among them, none lost or doubled."""
    if not seats:
        return {}
    together = np.concatenate([seat.train for seat in seats])
    order = ctx.numpy_rng("shares").permutation(together)
    shares = np.array_split(order, len(seats))
    work = plain_work(ctx)
    return {
        seat.number: work.but(samples=torch.from_numpy(np.sort(share)))
        for seat, share in zip(seats, shares, strict=True)
        if len(share)
    }


SELECTION: dict[str, Callable[[Ctx, Sequence[Seat]], list[int]]] = {"all": _all, "random": _random}
SCHEDULE: dict[str, Callable[[Ctx, Sequence[Seat]], dict[int, Work]]] = {
    "own_data": _own_data,
    "equal": _equal,
}
