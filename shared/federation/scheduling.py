"""Scheduling policies: the task of each selected seat, by the spec's `schedule`; they serve any algorithm.

A policy is a pure function: its randomness comes from the edge's stream, and its result depends neither on the order
of arrival nor on wall time.

Two policies divide a client's training samples among participants. `proportional` is eq. 2
(Task_j = Comp_j / sum Comp x Task) of Liu, Wu, Liu: Research on Personalized Federated Learning Algorithm in Industrial
Internet of Things, 2025; `balanced` lets all of them finish as early as the predictions allow. Whatever the
predictions are, each sample is assigned to exactly one participant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial as bound

import numpy as np
import numpy.typing as npt
import torch

from shared.core.apportionment import largest_remainder
from shared.federation.context import Context, EdgeView
from shared.federation.messages import Task
from shared.federation.population import Seat
from shared.federation.visit_estimates import expected, plain_task, twin_of
from shared.simulation import digital_twin
from shared.spec.experiment import ExperimentSpec

Indices = npt.NDArray[np.int64]
Shares = dict[int, Indices]
_BISECTIONS = 200
"""Most steps of the search for the earliest finish; floating point ends it before."""


@dataclass(frozen=True)
class Participant:
    """What the division of a task knows of a participant: a device, or the edge's own machine.

    Attributes:
        seat: its number.
        free_sps: its free compute in samples a second, reduced by its twin's caution.
        fixed_s: predicted seconds to send its order and receive its update, independent of its share.
        sample_s: predicted seconds of work for one sample.
        moved_s: predicted seconds to send it one sample that it lacks.
        own: samples of the task that it holds; no other participant holds them.
        server: whether it is the edge's own machine, which has all samples.
    """

    seat: int
    free_sps: float
    fixed_s: float = 0.0
    sample_s: float = 1.0
    moved_s: float = 0.0
    own: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    server: bool = False

    def finishes_s(self, n: int) -> float:
        """Predicted seconds until it has finished n samples, its own first."""
        n_moved = 0 if self.server else max(n - len(self.own), 0)
        return self.fixed_s + n * self.sample_s + n_moved * self.moved_s if n else 0.0

    def within(self, until_s: float) -> int:
        """Number of samples that it is predicted to finish within `until_s` seconds."""
        left_s = until_s - self.fixed_s
        if left_s < 0:
            return 0
        n_own = left_s / self.sample_s
        if self.server or n_own <= len(self.own):
            return int(n_own)
        return len(self.own) + int((left_s - len(self.own) * self.sample_s) / (self.sample_s + self.moved_s))


def proportional(participants: Sequence[Participant], task: Indices, rng: np.random.Generator) -> Shares:
    """Divides the task, in seeded order, in proportion to free compute (eq. 2), by largest remainder.

    If no participant has free compute, the edge's own machine takes all; without one, shares are equal.
    """
    compute = np.array([p.free_sps for p in participants], np.float64)
    if not compute.any():
        compute = np.array([p.server for p in participants], np.float64)
    if not compute.any():
        compute = np.ones(len(participants))
    sizes = largest_remainder(compute / compute.max(), len(task))
    parts = np.split(rng.permutation(task), np.cumsum(sizes)[:-1])
    return _not_empty({p.seat: part for p, part in zip(participants, parts, strict=True)})


def balanced(participants: Sequence[Participant], task: Indices, rng: np.random.Generator) -> Shares:
    """Divides the task so that the last participant finishes as early as the predictions allow, exact to one sample.

    The number of samples that a participant can finish by an instant grows with it, so that bisection finds the first
    instant by which all together can finish the task. Each trains on its own samples first; those left
    over by their holders are dealt out in seeded order.
    """
    counts = _balanced_counts(participants, len(task))
    kept = {p.seat: rng.permutation(p.own)[: counts[p.seat]] for p in participants}
    held = np.concatenate([np.empty(0, np.int64), *kept.values()])
    pool = rng.permutation(np.setdiff1d(task, held))
    due = [counts[p.seat] - len(kept[p.seat]) for p in participants]
    parts = np.split(pool, np.cumsum(due)[:-1])
    dealt = {w.seat: np.concatenate([kept[w.seat], part]) for w, part in zip(participants, parts, strict=True)}
    return _not_empty(dealt)


def _balanced_counts(participants: Sequence[Participant], total: int) -> dict[int, int]:
    low, high = 0.0, min(p.finishes_s(total) for p in participants)
    high = math.nextafter(high, math.inf) * (1 + 1e-12)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        enough = sum(p.within(middle) for p in participants) >= total
        low, high = (low, middle) if enough else (middle, high)
    counts = {p.seat: min(p.within(high), total) for p in participants}
    by_seat = {p.seat: p for p in participants}
    while (over := sum(counts.values()) - total) > 0:  # taken from those that finish last
        last = max((s for s in counts if counts[s]), key=lambda s: (by_seat[s].finishes_s(counts[s]), s))
        counts[last] -= min(max(over - len(participants), 1), counts[last])
    short = min(participants, key=lambda p: (p.finishes_s(counts[p.seat] + 1), p.seat)).seat
    counts[short] += max(total - sum(counts.values()), 0)  # if rounding left some over
    return counts


def _not_empty(shares: Shares) -> Shares:
    return {seat: np.sort(share) for seat, share in shares.items() if len(share)}


def schedule(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
    """The task of each selected seat, by the spec's `schedule`."""
    return SCHEDULE[ctx.spec.schedule](ctx, seats, view)


def _own_data(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
    """Every seat trains on its own samples; one without samples (an edge's worker) is not visited."""
    task = plain_task(ctx)
    return {seat.number: task for seat in seats if seat.n_train}


def n_steps(spec: ExperimentSpec, n_samples: int) -> int:
    """Number of mini-batches in one epoch over `n_samples` samples."""
    return -(-n_samples // spec.batch_size)


def n_syncs(spec: ExperimentSpec, seats: Sequence[Seat]) -> int:
    """Number of edge rounds into which `average_every` divides one edge round of these seats.

    It is 1 with `average_every: visit`, the number of epochs with `epoch`, and the number of mini-batches of the seats'
    samples in all epochs with `step`.
    """
    if spec.average_every == "visit":
        return 1
    steps_per_epoch = n_steps(spec, sum(seat.n_train for seat in seats)) if spec.average_every == "step" else 1
    return spec.local_epochs * max(steps_per_epoch, 1)


def task_of(ctx: Context, seats: Sequence[Seat]) -> Indices:
    """The samples on which these seats train together in an edge round: all; with `average_every: step` one batch.

    An epoch's batches come from one seeded shuffle, as if one machine held all samples.
    """
    together = np.concatenate([np.empty(0, np.int64), *(seat.train for seat in seats)])
    if ctx.spec.average_every != "step" or not len(together):
        return together
    step = ctx.edge_round % n_steps(ctx.spec, len(together))
    first = ctx.at(edge_round=ctx.edge_round - step, wave=0)
    order = first.numpy_rng("epoch").permutation(together)
    return order[step * ctx.spec.batch_size : (step + 1) * ctx.spec.batch_size]


def divided_batch(batch_size: int, n: int, total: int) -> int:
    """The part of a batch for a share of `n` of `total` samples, in whole samples, at least one."""
    return max((2 * batch_size * n + total) // (2 * total), 1)


def _tasks(ctx: Context, shares: Shares) -> dict[int, Task]:
    """Tasks of training on these shares; with `average_every: step` one step on a whole share."""
    task, total = plain_task(ctx), sum(map(len, shares.values()))
    found = {seat: task.replace(samples=torch.from_numpy(np.sort(share))) for seat, share in sorted(shares.items())}
    if ctx.spec.divide_batch:
        parts = {seat: divided_batch(ctx.spec.batch_size, len(share), total) for seat, share in shares.items()}
        return {seat: one.replace(batch_size=max(parts[seat], ctx.model.least_batch)) for seat, one in found.items()}
    if ctx.spec.average_every != "step":
        return found
    return {seat: one.replace(epochs=None, steps=1, batch_size=len(shares[seat])) for seat, one in found.items()}


def _equal(ctx: Context, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
    """Pools the selected seats' samples, shuffles them and deals them out evenly."""
    if not seats:
        return {}
    order = ctx.numpy_rng("shares").permutation(task_of(ctx, seats))
    shares = np.array_split(order, len(seats))
    return _tasks(ctx, {seat.number: share for seat, share in zip(seats, shares, strict=True) if len(share)})


Divide = Callable[[Sequence[Participant], Indices, np.random.Generator], Shares]


def _planned(divide: Divide, ctx: Context, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
    """Divides the task among the seats whose twins let work be planned onto them; among all seats if there are none."""
    task = task_of(ctx, seats) if view.unfinished is None else view.unfinished
    if not seats or not len(task):
        return {}
    fit = [seat for seat in seats if twin_of(view, seat).caution] or list(seats)
    participants = [_participant(ctx, seat, task, twin_of(view, seat)) for seat in fit]
    return _tasks(ctx, divide(participants, task, ctx.numpy_rng("shares")))


def _participant(ctx: Context, seat: Seat, task: Indices, twin: digital_twin.Twin) -> Participant:
    """A seat as a participant: its free compute by telemetry, its seconds by its twin."""
    caution = twin.caution or 1.0
    n = ctx.spec.versions
    a_sample = ctx.model.passes.of(n if ctx.spec.average_every == "step" else n * ctx.spec.epochs_a_visit, n)
    cost, moving = expected(ctx, seat, a_sample), expected(ctx, seat, 0, n_moved=1)
    fixed = expected(ctx, seat, 0)
    work_s, _ = digital_twin.predict(twin, cost.compute_s - fixed.compute_s)
    return Participant(
        seat=seat.number,
        free_sps=twin.telemetry.free_sps * caution,
        fixed_s=fixed.simulated_s,
        sample_s=work_s / caution,
        moved_s=moving.down_s - fixed.down_s,
        own=np.intersect1d(seat.train, task),
        server=seat.role == "worker",
    )


SCHEDULE: dict[str, Callable[[Context, Sequence[Seat], EdgeView], dict[int, Task]]] = {
    "own_data": _own_data,
    "equal": _equal,
    "free_compute": bound(_planned, proportional),
    "finish_time": bound(_planned, balanced),
}
