"""Per-FedAvg.

A. Fallah, A. Mokhtari, A. Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach. NeurIPS 2020, algorithm 1, and its variants FO and HF.

    F(w)   mean over clients of f_i(w - alpha grad f_i(w)): a model is sought that is good after one step of a client
    w~     <- w - alpha grad f(w; D)
    w      <- w - beta (I - alpha Hessian f(w; D'')) grad f(w~; D')                     algorithm 1, tau local steps

    first_order (FO)    the Hessian is left out
    hessian_free (HF)   Hessian times v is [grad f(w + delta v; D'') - grad f(w - delta v; D'')] / (2 delta),
                        v = grad f(w~; D')

beta is the spec's `lr`; D, D' and D'' are batches of `batch_size`, drawn independently. The server averages as FedAvg
does. A client's own model, which is tested, is `adapt_steps` steps of length alpha from the model received, each on a
batch of its training samples. alpha = 0 with `local_steps: null` is FedAvg, bit for bit.

Deviations and readings:

- Clients are weighted by samples, as in FedAvg. The paper takes plain means over clients.
- The paper seeks a model for "one or a few steps", but F, its three approximations and its experiments have one step.
  So `adapt_steps` says how often a client steps before it is tested; training always looks one step ahead.
- The spec's momentum and weight decay apply to the step with beta.
- A held-out client has no training samples: it adapts on a seeded batch of its test samples (half of them, if they are
  fewer than two batches), the same in each of its steps, and its own model is tested on the others. The model received
  is tested on all, as in any method.
- Batch-norm's running statistics are updated in every pass.
- Passes over D and D'' count as trained samples and take simulated time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from shared.federation.hooks import (
    Algorithm,
    Batch,
    Broadcast,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    EdgeView,
    Footprint,
    Local,
    Objective,
    OwnBuffers,
    Passes,
    Record,
    Samples,
    Score,
    Seat,
    Sgd,
    Task,
    Tensor,
    TensorMap,
    Trainer,
    default_local,
    starting_model,
)
from shared.training.loop import LossFunction


class Params(Record):
    """Parameters of the personal step, and of the meta-learning.

    Attributes:
        alpha: learning rate of the personal step.
        hessian: how second derivatives are approximated.
        local_steps: tau, the steps of a task; None means the spec's epochs.
        adapt_steps: number of personal steps from the model received to the client's own model, which is tested.
        delta: HF's distance from w at which the two gradients are taken, in units of v.
    """

    alpha: Annotated[float, Field(ge=0, le=100)] = 0.01
    hessian: Literal["first_order", "hessian_free"] = "first_order"
    local_steps: Annotated[int, Field(ge=1, le=100_000)] | None = 10
    adapt_steps: Annotated[int, Field(ge=1, le=10_000)] = 1
    delta: Annotated[float, Field(gt=0, le=1)] = 1e-3


def gradients(params: Params) -> int:
    """Returns the number of batches on which a step takes gradients."""
    if not params.alpha:
        return 1
    return 4 if params.hessian == "hessian_free" else 2


def meta_objective(ctx: Context[Params], first: Iterator[Batch], second: Iterator[Batch] | None) -> Objective:
    """Returns the objective whose gradient is that of algorithm 1.

    The batch of a step is D'; `first` yields D, `second` yields D'' (None for first order).
    """
    alpha, delta = ctx.params.alpha, ctx.params.delta

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        weights: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        w = [p.detach().clone() for p in weights]
        gradient = partial(_gradient, model, weights, ctx.model.target.loss)
        slope, _, _ = gradient(next(first))
        _move(weights, w, slope, -alpha)  # w~
        v, loss, outputs = gradient((x, y))
        if second is not None:
            batch = next(second)
            _move(weights, w, v, delta)
            above, _, _ = gradient(batch)
            _move(weights, w, v, -delta)
            below, _, _ = gradient(batch)
            v = [g - alpha * (a - b) / (2 * delta) for g, a, b in zip(v, above, below, strict=True)]
        for p, start, found in zip(weights, w, v, strict=True):
            p.data.copy_(start)
            p.grad = found
        return loss, outputs

    return objective


def _gradient(
    model: nn.Module, weights: list[Tensor], loss_of: LossFunction, batch: Batch
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Returns gradients of the mean loss of a batch at the present weights, the loss, and the outputs."""
    x, y = batch
    outputs = model(x)
    loss = loss_of(outputs, y)
    found = torch.autograd.grad(loss, weights, materialize_grads=True)
    return list(found), loss.detach(), outputs.detach()


def _move(weights: list[Tensor], start: list[Tensor], direction: list[Tensor], length: float) -> None:
    """Sets the weights to `start + length * direction`."""
    for p, at, way in zip(weights, start, direction, strict=True):
        p.data.copy_(at).add_(way, alpha=length)


class Edge(EdgeHooks):
    """Gives each device tau steps in place of the spec's epochs."""

    def schedule(
        self, ctx: Context[Params], state: EdgeModel, seats: Sequence[Seat], view: EdgeView
    ) -> dict[int, Task]:
        tasks, tau = super().schedule(ctx, state, seats, view), ctx.params.local_steps
        return tasks if tau is None else {seat: task.replace(epochs=None, steps=tau) for seat, task in tasks.items()}


class Device(DeviceHooks):
    """Learns a model that is good after one step, and takes such steps before it is tested."""

    def local_update(self, ctx: Context[Params], state: OwnBuffers, message: Broadcast, trainer: Trainer) -> Local:
        start = starting_model(state, message)
        if not ctx.params.alpha:
            return default_local(ctx, start, trainer.fit(ctx, start))
        free = ctx.params.hessian == "hessian_free"
        first = trainer.batches(ctx, purpose="inner batches")
        second = trainer.batches(ctx, purpose="hessian batches") if free else None
        fit = trainer.fit(ctx, start, objective=meta_objective(ctx, first, second))
        passed = (gradients(ctx.params) - 1) * fit.trained.n_samples
        return replace(default_local(ctx, start, fit), n_passed=passed)

    def personalise(
        self, ctx: Context[Params], state: OwnBuffers, message: Broadcast, local: Local | None, trainer: Trainer
    ) -> TensorMap | None:
        if not ctx.params.alpha:
            return super().personalise(ctx, state, message, local, trainer)
        start, (adapt, _) = starting_model(state, message), adaptation_split(ctx, trainer)
        if len(adapt) < ctx.model.least_batch:
            return start
        step = Sgd(ctx.params.alpha, momentum=0.0, weight_decay=0.0)
        steps = ctx.params.adapt_steps
        return trainer.fit(ctx, start, samples=adapt, purpose="personalise", steps=steps, step=step).model

    def evaluate(
        self, ctx: Context[Params], state: OwnBuffers, message: Broadcast, own: TensorMap | None, trainer: Trainer
    ) -> tuple[Score | None, Score | None]:
        tests = adaptation_split(ctx, trainer)[1] if ctx.params.alpha else trainer.tests
        received = trainer.evaluate(starting_model(state, message), trainer.tests)
        return received, trainer.evaluate(own, tests) if own is not None else None


def adaptation_split(ctx: Context[Params], trainer: Trainer) -> tuple[Samples, Samples]:
    """Returns the samples on which a client adapts, a batch for each step, and those on which its model is tested."""
    here, n = trainer.samples if trainer.n_samples else trainer.tests, trainer.task.batch_size
    order = ctx.numpy_rng("adapt").permutation(here.indices)
    if trainer.n_samples:
        return Samples(here.part, order[: n * ctx.params.adapt_steps]), trainer.tests
    n = min(n, len(order) // 2)
    return Samples(here.part, order[:n]), Samples(here.part, np.sort(order[n:]))


ALGORITHM = Algorithm(
    name="per_fedavg",
    paper="Fallah et al.: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning "
    "Approach. NeurIPS 2020",
    params=Params,
    edge=Edge(),
    device=Device(),
    headline="mean over clients",
    needs={"client": "device", "average_every": "visit"},
    own_objective=lambda params: params.alpha > 0,
    footprint=Footprint(passes=lambda params: Passes(per_training_sample=gradients(params))),
)
