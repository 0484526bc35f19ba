"""Estimates of a visit beforehand: its samples, bytes and simulated seconds."""

from __future__ import annotations

import math

import numpy as np

from shared.federation.context import Context, EdgeView
from shared.federation.messages import Task
from shared.federation.population import Seat
from shared.simulation import REFERENCE_FLOPS, digital_twin
from shared.simulation.cost_model import Cost, LinkUse, expected_cost
from shared.training.loop import batch_sizes


def plain_task(ctx: Context) -> Task:
    """A task with the spec's epochs or steps; models are tested in the first wave of a round with evaluation."""
    due, steps = ctx.edge_round == 0 and ctx.wave == 0 and evaluation_due(ctx), ctx.spec.local_steps
    epochs = ctx.spec.epochs_a_visit if steps is None else None
    return Task(epochs=epochs, steps=steps, batch_size=ctx.spec.batch_size, evaluate=due)


def evaluation_due(ctx: Context) -> bool:
    """Whether models are tested in this round, by the spec's `eval_every`; an edge does not know when a round ends."""
    return ctx.spec.eval_every_s is None and ctx.round_no % ctx.spec.eval_every == 0


def samples_due(ctx: Context, task: Task, seat: Seat) -> int:
    """Samples that a complete visit passes through the model; each counts once for every pass."""
    return math.ceil(ctx.model.passes.of(n_trained(ctx, task, seat), n_in_epoch(ctx, task, seat)))


def n_held(task: Task, seat: Seat) -> int:
    """Number of training samples of a visit: its weight."""
    return seat.n_train if task.samples is None else len(task.samples)


def n_in_epoch(ctx: Context, task: Task, seat: Seat) -> int:
    """Number of samples in an epoch of a visit, augmented copies that expand them included."""
    return n_held(task, seat) * ctx.spec.versions


def n_trained(ctx: Context, task: Task, seat: Seat) -> int:
    """Samples in all training steps of a complete visit; each counts once for every epoch."""
    n = n_in_epoch(ctx, task, seat)
    if task.kind != "train" or not n:
        return 0
    if task.steps is None:
        return n * (ctx.spec.epochs_a_visit if task.epochs is None else task.epochs)
    full, rest = divmod(task.steps, len(batch_sizes(n, task.batch_size, ctx.model.least_batch)))
    return full * n + rest * task.batch_size


def trained_limits(ctx: Context, task: Task, seat: Seat, *, exact: bool) -> tuple[int, int]:
    """The least and the most samples that a complete visit can have passed through training.

    `exact`: it trains on all samples of its task and in no other way; an algorithm's own training may use fewer.
    """
    n, due = n_in_epoch(ctx, task, seat), n_trained(ctx, task, seat)
    if exact:
        return due, due
    if due and task.steps is not None:  # the batches of some of its samples may be larger than those of all
        due = task.steps * min(n, task.batch_size + ctx.model.least_batch - 1)
    return 0, ctx.model.passes.most(due, n)


def share_of(ctx: Context, task: Task, whole: Task, seat: Seat) -> float:
    """The share of the whole task's samples that this task trains on; 1 if the whole task trains on none."""
    due = n_trained(ctx, whole, seat)
    return n_trained(ctx, task, seat) / due if due else 1.0


HEAD_BYTES = 8192
"""Bytes assumed for the rest of a body beside the model: spec, names and shapes."""


def expected(ctx: Context, seat: Seat, n_passed: float, *, update: bool = True, n_moved: int = 0) -> Cost:
    """The expected cost of a visit, by the seat's profile and the model's size.

    Args:
        ctx: of the edge round.
        seat: the seat visited.
        n_passed: samples that pass through the model.
        update: whether the answer brings the update; else it brings a report, which is small.
        n_moved: samples that are sent to the seat because it lacks them.
    """
    down_bytes = ctx.model.link_use.down_bytes + HEAD_BYTES + n_moved * ctx.model.sample_bytes
    linked = LinkUse(down_bytes=down_bytes, up_bytes=HEAD_BYTES + (ctx.model.link_use.up_bytes if update else 0))
    use = LinkUse() if seat.role == "worker" else linked
    return expected_cost(seat.profile, seat.latency_to(ctx.edge), use, n_passed * ctx.model.flops)


def predicted(ctx: Context, seat: Seat, task: Task, twin: digital_twin.Twin) -> tuple[float, float]:
    """Duration of a visit in seconds as its seat's twin predicts it, and its standard deviation."""
    n_moved = 0 if task.samples is None else int((~np.isin(task.samples.numpy(), seat.train)).sum())
    cost = expected(ctx, seat, samples_due(ctx, task, seat), n_moved=n_moved)
    work_s, sd_s = digital_twin.predict(twin, cost.compute_s)
    return cost.simulated_s - cost.compute_s + work_s, sd_s


def twin_of(view: EdgeView, seat: Seat) -> digital_twin.Twin:
    """The twin of a seat; without one, a twin that only knows its profile."""
    telemetry = digital_twin.Telemetry(free_sps=seat.profile.compute_sps)
    return view.twins.get(seat.number) or digital_twin.Twin(seat=seat.number, telemetry=telemetry)


def partial(ctx: Context, task: Task, seat: Seat, left_s: float, *, update: bool = True) -> Task:
    """The task cut to as many whole steps, at least one, as let its answer be expected within `left_s` seconds.

    `update` says whether that answer brings the update; else it brings a report.
    """
    due = samples_due(ctx, task, seat)
    speed = seat.profile.compute_sps * REFERENCE_FLOPS / max(ctx.model.flops, 1)  # samples of this model a second
    fit = max(left_s - expected(ctx, seat, 0, update=update).simulated_s, 0.0) * speed
    if fit >= due:
        return task
    n = n_in_epoch(ctx, task, seat)
    epochs, rest = divmod(
        int(max(fit - ctx.model.passes.extra_per_sample * n, 0.0) / ctx.model.passes.per_training_sample), n
    )
    an_epoch = len(batch_sizes(n, task.batch_size, ctx.model.least_batch))
    steps = epochs * an_epoch + min(rest // task.batch_size, an_epoch - 1)
    return task.replace(epochs=None, steps=max(steps, 1))
