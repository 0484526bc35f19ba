"""Selection and scheduling by name, as the spec says; they serve any algorithm.

A policy is a function of (ctx, seats): its randomness comes from the edge's stream, its answer never depends on
arrival or on wall time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial as bound

import numpy as np
import torch

from shared.context import Ctx
from shared.messages import Work
from shared.planning import Indices, Shares, Worker, balanced, proportional
from shared.population import Seat
from shared.simulation import REFERENCE_FLOPS, digital_twin
from shared.simulation.cost_model import Cost, LinkUse, expected_cost
from shared.training.loop import batch_sizes

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
    return Work(epochs=ctx.spec.epochs_a_visit, batch_size=ctx.spec.batch_size, evaluate=due)


def evaluation_due(ctx: Ctx) -> bool:
    """Whether this round is one of the `eval_every`."""
    return ctx.round_no % ctx.spec.eval_every == 0


def samples_due(ctx: Ctx, work: Work, seat: Seat) -> int:
    """Samples that a visit of this work passes through the model, counted as often as that, if it ends."""
    return math.ceil(ctx.passes.of(n_trained(ctx, work, seat), n_held(work, seat)))


def n_held(work: Work, seat: Seat) -> int:
    """Samples that a visit of this work has."""
    return len(seat.train) if work.samples is None else len(work.samples)


def n_trained(ctx: Ctx, work: Work, seat: Seat) -> int:
    """Samples of the steps of a visit of this work, counted again in each epoch, if it ends."""
    n = n_held(work, seat)
    if work.kind != "train" or not n:
        return 0
    if work.steps is None:
        return n * (ctx.spec.epochs_a_visit if work.epochs is None else work.epochs)
    full, rest = divmod(work.steps, len(batch_sizes(n, work.batch_size, ctx.least_batch)))
    return full * n + rest * work.batch_size


def share_of(ctx: Ctx, work: Work, whole: Work, seat: Seat) -> float:
    """Which part of the samples of the whole work this work trains on; of work that trains on none, all."""
    due = n_trained(ctx, whole, seat)
    return n_trained(ctx, work, seat) / due if due else 1.0


HEAD_BYTES = 8192
"""What bodies are expected to hold beside a model: the spec, names and shapes."""


def expected(ctx: Ctx, seat: Seat, n_passed: float, *, update: bool = True, n_moved: int = 0) -> Cost:
    """What a visit that passes so many samples is expected to cost, by the seat's profile and the model's size.

    `update`: its answer brings the update; else a report, which is small. `n_moved`: samples that are sent to it.
    """
    down_bytes = ctx.model_use.down_bytes + HEAD_BYTES + n_moved * ctx.sample_bytes
    linked = LinkUse(down_bytes=down_bytes, up_bytes=HEAD_BYTES + (ctx.model_use.up_bytes if update else 0))
    use = LinkUse() if seat.role == "worker" else linked
    return expected_cost(seat.profile, seat.latency_to(ctx.edge), use, n_passed * ctx.flops)


def predicted(ctx: Ctx, seat: Seat, work: Work) -> tuple[float, float]:
    """Seconds that a visit is predicted to take by its seat's twin, and their standard deviation."""
    n_moved = 0 if work.samples is None else int((~np.isin(work.samples.numpy(), seat.train)).sum())
    cost = expected(ctx, seat, samples_due(ctx, work, seat), n_moved=n_moved)
    work_s, sd_s = digital_twin.predict(_twin(ctx, seat), cost.compute_s)
    return cost.simulated_s - cost.compute_s + work_s, sd_s


def _twin(ctx: Ctx, seat: Seat) -> digital_twin.Twin:
    """What is known of a seat; without twins, what its profile says."""
    told = digital_twin.Telemetry(free_sps=seat.profile.compute_sps)
    return ctx.twins.get(seat.number) or digital_twin.Twin(seat=seat.number, telemetry=told)


def partial(ctx: Ctx, work: Work, seat: Seat, left_s: float, *, update: bool = True) -> Work:
    """The work, cut to whole steps (at least one) with which its answer is expected within so many seconds.

    `update`: that answer brings the update; else a report.
    """
    due = samples_due(ctx, work, seat)
    speed = seat.profile.compute_sps * REFERENCE_FLOPS / max(ctx.flops, 1)  # samples of this model a second
    fit = max(left_s - expected(ctx, seat, 0, update=update).simulated_s, 0.0) * speed
    if fit >= due:
        return work
    n = n_held(work, seat)
    epochs, rest = divmod(int(max(fit - ctx.passes.beside * n, 0.0) / ctx.passes.of_step), n)
    an_epoch = len(batch_sizes(n, work.batch_size, ctx.least_batch))
    steps = epochs * an_epoch + min(rest // work.batch_size, an_epoch - 1)
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


def n_steps(ctx: Ctx, n_samples: int) -> int:
    """Mini-batches of one epoch over so many samples."""
    return -(-n_samples // ctx.spec.batch_size)


def n_syncs(ctx: Ctx, seats: Sequence[Seat]) -> int:
    """Edge rounds that stand for one, in which these seats train together: with `sync` one for each epoch or step."""
    if ctx.spec.sync == "round":
        return 1
    a_step = n_steps(ctx, sum(len(seat.train) for seat in seats)) if ctx.spec.sync == "step" else 1
    return ctx.spec.local_epochs * max(a_step, 1)


def task_of(ctx: Ctx, seats: Sequence[Seat]) -> Indices:
    """What these seats are to train on together in an edge round: what they hold, with `sync: step` a batch of it.

    An epoch's batches are those of one seeded shuffle, as if one machine held everything.
    """
    together = np.concatenate([np.empty(0, np.int64), *(seat.train for seat in seats)])
    if ctx.spec.sync != "step" or not len(together):
        return together
    step = ctx.edge_round % n_steps(ctx, len(together))
    first = ctx.at(edge_round=ctx.edge_round - step, wave=0)
    order = first.numpy_rng("epoch").permutation(together)
    return order[step * ctx.spec.batch_size : (step + 1) * ctx.spec.batch_size]


def _works(ctx: Ctx, shares: Shares) -> dict[int, Work]:
    """Visits that train on shares; with `sync: step` one step on all of each."""
    work = plain_work(ctx)
    found = {seat: work.but(samples=torch.from_numpy(np.sort(share))) for seat, share in sorted(shares.items())}
    if ctx.spec.sync != "step":
        return found
    return {seat: one.but(epochs=None, steps=1, batch_size=len(shares[seat])) for seat, one in found.items()}


def _equal(ctx: Ctx, seats: Sequence[Seat]) -> dict[int, Work]:
    """The chosen seats' samples together, shuffled and dealt evenly among them, none lost or doubled."""
    if not seats:
        return {}
    order = ctx.numpy_rng("shares").permutation(task_of(ctx, seats))
    shares = np.array_split(order, len(seats))
    return _works(ctx, {seat.number: share for seat, share in zip(seats, shares, strict=True) if len(share)})


Divide = Callable[[Sequence[Worker], Indices, np.random.Generator], Shares]


def _planned(divide: Divide, ctx: Ctx, seats: Sequence[Seat]) -> dict[int, Work]:
    """Shares for those whose twins let work be planned onto them; for all, where there is nobody else."""
    task = task_of(ctx, seats) if ctx.unfinished is None else ctx.unfinished
    if not seats or not len(task):
        return {}
    fit = [seat for seat in seats if _twin(ctx, seat).caution] or list(seats)
    return _works(ctx, divide([_worker(ctx, seat, task) for seat in fit], task, ctx.numpy_rng("shares")))


def _worker(ctx: Ctx, seat: Seat, task: Indices) -> Worker:
    """A seat as a plan sees it: its free compute by telemetry, its seconds by its twin."""
    twin = _twin(ctx, seat)
    caution = twin.caution or 1.0
    a_sample = ctx.passes.of(1 if ctx.spec.sync == "step" else ctx.spec.epochs_a_visit, 1)
    cost, moving = expected(ctx, seat, a_sample), expected(ctx, seat, 0, n_moved=1)
    fixed = expected(ctx, seat, 0)
    work_s, _ = digital_twin.predict(twin, cost.compute_s - fixed.compute_s)
    return Worker(
        seat=seat.number,
        free_sps=twin.telemetry.free_sps * caution,
        fixed_s=fixed.simulated_s,
        sample_s=work_s / caution,
        moved_s=moving.down_s - fixed.down_s,
        own=np.intersect1d(seat.train, task),
        server=seat.role == "worker",
    )


SELECTION: dict[str, Choice] = {
    "all": _all,
    "random": _by_home(_random),
    "fastest": _by_home(_fastest),
    "power_of_choice": _by_home(_power_of_choice),
}
SCHEDULE: dict[str, Callable[[Ctx, Sequence[Seat]], dict[int, Work]]] = {
    "own_data": _own_data,
    "equal": _equal,
    "free_compute": bound(_planned, proportional),
    "finish_time": bound(_planned, balanced),
}
