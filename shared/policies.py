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
from shared.costs import Cost, LinkUse, expected_cost
from shared.messages import Work
from shared.population import Seat
from shared.profiles import REFERENCE_FLOPS

Choice = Callable[[Ctx, Sequence[Seat]], list[int]]


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


def share_of(ctx: Ctx, work: Work, whole: Work, seat: Seat) -> float:
    """Which part of the samples of the whole work this work trains on; of work that trains on none, all."""
    due = samples_due(ctx, whole, seat)
    return samples_due(ctx, work, seat) / due if due else 1.0


HEAD_BYTES = 8192
"""What bodies are expected to hold beside a model: the spec, names and shapes."""


def expected(ctx: Ctx, seat: Seat, n_trained: float, *, update: bool = True) -> Cost:
    """What a visit of so many samples is expected to cost, by the seat's profile and the model's size.

    `update`: its answer brings the update; else a report, which is small.
    """
    whole = ctx.model_bytes + HEAD_BYTES
    linked = LinkUse(down_bytes=whole, up_bytes=whole if update else HEAD_BYTES)
    use = LinkUse() if seat.role == "worker" else linked
    return expected_cost(seat.profile, seat.latency_to(ctx.edge), use, n_trained * ctx.flops)


def partial(ctx: Ctx, work: Work, seat: Seat, left_s: float, *, update: bool = True) -> Work:
    """The work, cut to whole steps (at least one) with which its answer is expected within so many seconds.

    `update`: that answer brings the update; else a report.
    """
    due = samples_due(ctx, work, seat)
    speed = seat.profile.compute_sps * REFERENCE_FLOPS / max(ctx.flops, 1)  # samples of this model a second
    fit = max(left_s - expected(ctx, seat, 0, update=update).simulated_s, 0.0) * speed
    if fit >= due:
        return work
    n = len(seat.train) if work.samples is None else len(work.samples)
    epochs, rest = divmod(int(fit), n)
    steps = epochs * -(-n // work.batch_size) + rest // work.batch_size
    return work.but(epochs=None, steps=max(steps, 1))


def _all(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
    return [seat.number for seat in seats]


def _by_home(choose: Choice) -> Choice:
    """A policy that chooses among the seats of each home by itself.

    Guests, whose own edge is lost, are chosen as they would have been at home: faults do not change who is chosen.
    """

    def select(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
        homes = sorted({seat.home for seat in seats})
        parts = [choose(ctx.at(edge=home), [seat for seat in seats if seat.home == home]) for home in homes]
        return sorted(number for part in parts for number in part)

    return select


def _random(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
    """`fraction_train` of the seats, at least one (FedAvg's C), without replacement."""
    n = _n_chosen(ctx, len(seats))
    chosen = ctx.numpy_rng("select").choice(len(seats), size=n, replace=False)
    return [seats[i].number for i in chosen]


def _fastest(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
    """As many as `random`, those whose visits are expected to be the shortest; of equals the lower seats."""
    work = plain_work(ctx)
    took = {seat.number: expected(ctx, seat, samples_due(ctx, work, seat)).simulated_s for seat in seats}
    return sorted(took, key=lambda number: (took[number], number))[: _n_chosen(ctx, len(seats))]


def _power_of_choice(ctx: Ctx, seats: Sequence[Seat]) -> list[int]:
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
    return sorted(candidates, key=lambda number: (-ctx.losses.get(number, math.inf), number))[:n]


def _n_chosen(ctx: Ctx, n: int) -> int:
    """How many of n: what is wanted, and `overselection` beyond."""
    return min(_beyond(ctx, _fraction_of(ctx, n)), n)


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


SELECTION: dict[str, Choice] = {
    "all": _all,
    "random": _by_home(_random),
    "fastest": _by_home(_fastest),
    "power_of_choice": _by_home(_power_of_choice),
}
SCHEDULE: dict[str, Callable[[Ctx, Sequence[Seat]], dict[int, Work]]] = {
    "own_data": _own_data,
    "equal": _equal,
}
