"""Estimates of a visit before it is made: its samples, bytes, and simulated seconds."""

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
    """The spec's epochs and batch size; models are tested in the first edge round of a round that is due."""
    due = ctx.edge_round == 0 and ctx.wave == 0 and evaluation_due(ctx)
    return Task(epochs=ctx.spec.epochs_a_visit, batch_size=ctx.spec.batch_size, evaluate=due)


def evaluation_due(ctx: Context) -> bool:
    """Whether this round is one of the `eval_every`."""
    return ctx.round_no % ctx.spec.eval_every == 0


def samples_due(ctx: Context, task: Task, seat: Seat) -> int:
    """Samples that a visit of this work passes through the model, counted as often as that, if it ends."""
    return math.ceil(ctx.model.passes.of(n_trained(ctx, task, seat), n_held(task, seat)))


def n_held(task: Task, seat: Seat) -> int:
    """Samples that a visit of this work has."""
    return len(seat.train) if task.samples is None else len(task.samples)


def n_trained(ctx: Context, task: Task, seat: Seat) -> int:
    """Samples of the steps of a visit of this work, counted again in each epoch, if it ends."""
    n = n_held(task, seat)
    if task.kind != "train" or not n:
        return 0
    if task.steps is None:
        return n * (ctx.spec.epochs_a_visit if task.epochs is None else task.epochs)
    full, rest = divmod(task.steps, len(batch_sizes(n, task.batch_size, ctx.model.least_batch)))
    return full * n + rest * task.batch_size


def share_of(ctx: Context, task: Task, whole: Task, seat: Seat) -> float:
    """Which part of the samples of the whole work this work trains on; of work that trains on none, all."""
    due = n_trained(ctx, whole, seat)
    return n_trained(ctx, task, seat) / due if due else 1.0


HEAD_BYTES = 8192
"""What bodies are expected to hold beside a model: the spec, names and shapes."""


def expected(ctx: Context, seat: Seat, n_passed: float, *, update: bool = True, n_moved: int = 0) -> Cost:
    """What a visit that passes so many samples is expected to cost, by the seat's profile and the model's size.

    `update`: its answer brings the update; else a report, which is small. `n_moved`: samples that are sent to it.
    """
    down_bytes = ctx.model.link_use.down_bytes + HEAD_BYTES + n_moved * ctx.model.sample_bytes
    linked = LinkUse(down_bytes=down_bytes, up_bytes=HEAD_BYTES + (ctx.model.link_use.up_bytes if update else 0))
    use = LinkUse() if seat.role == "worker" else linked
    return expected_cost(seat.profile, seat.latency_to(ctx.edge), use, n_passed * ctx.model.flops)


def predicted(ctx: Context, seat: Seat, task: Task, twin: digital_twin.Twin) -> tuple[float, float]:
    """Seconds that a visit is predicted to take by its seat's twin, and their standard deviation."""
    n_moved = 0 if task.samples is None else int((~np.isin(task.samples.numpy(), seat.train)).sum())
    cost = expected(ctx, seat, samples_due(ctx, task, seat), n_moved=n_moved)
    work_s, sd_s = digital_twin.predict(twin, cost.compute_s)
    return cost.simulated_s - cost.compute_s + work_s, sd_s


def twin_of(view: EdgeView, seat: Seat) -> digital_twin.Twin:
    """The twin of a seat; at an edge that keeps no twins, one that has its profile's speed."""
    told = digital_twin.Telemetry(free_sps=seat.profile.compute_sps)
    return view.twins.get(seat.number) or digital_twin.Twin(seat=seat.number, telemetry=told)


def partial(ctx: Context, task: Task, seat: Seat, left_s: float, *, update: bool = True) -> Task:
    """The work, cut to whole steps (at least one) with which its answer is expected within so many seconds.

    `update`: that answer brings the update; else a report.
    """
    due = samples_due(ctx, task, seat)
    speed = seat.profile.compute_sps * REFERENCE_FLOPS / max(ctx.model.flops, 1)  # samples of this model a second
    fit = max(left_s - expected(ctx, seat, 0, update=update).simulated_s, 0.0) * speed
    if fit >= due:
        return task
    n = n_held(task, seat)
    epochs, rest = divmod(int(max(fit - ctx.model.passes.beside * n, 0.0) / ctx.model.passes.of_step), n)
    an_epoch = len(batch_sizes(n, task.batch_size, ctx.model.least_batch))
    steps = epochs * an_epoch + min(rest // task.batch_size, an_epoch - 1)
    return task.replace(epochs=None, steps=max(steps, 1))
