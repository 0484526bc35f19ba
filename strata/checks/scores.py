"""What has to hold of losses and metrics, tried with their default parameters on random outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from shared.federation.scoring_trials import drawn_outputs
from shared.training.description import Classes, Labels, Numbers, Target, Tokens
from shared.training.losses import Loss, loss_of_run
from shared.training.metrics.metric import Metric, MetricOfRun, metric_of_run, rows_of
from strata.checks.monitor import leaves, require

N = 12
TARGETS: dict[str, Target] = {
    "classes": Classes(4),
    "labels": Labels(3),
    "numbers": Numbers((2,)),
    "tokens": Tokens(4, 3),
}


def _samples(value: Loss | Metric) -> Iterator[tuple[Target, Tensor, Tensor]]:
    """By target, random outputs and targets of some samples."""
    generator = torch.Generator().manual_seed(0)
    for kind in sorted(value.kinds):
        target = TARGETS[kind]
        outputs = drawn_outputs(target, N, generator)
        if isinstance(target, Numbers):
            yield target, outputs, torch.randn(N, *target.shape, generator=generator)
        else:
            y = target.example(N)
            below = 2 if isinstance(target, Labels) else target.n
            yield target, outputs, torch.randint(below, y.shape, generator=generator).to(y.dtype)


def loss_is_one_number_for_each_prediction(loss: Loss) -> None:
    """It is finite, differentiable, and that of a prediction does not depend on the others of the batch."""
    for target, outputs, y in _samples(loss):
        outputs.requires_grad_()
        made = loss_of_run(loss, {}, target)
        each = made.each(outputs, y)
        require(bool(torch.isfinite(each).all()), f"{target.kind}: a loss is not finite")
        (gradient,) = torch.autograd.grad(each.mean(), outputs)
        require(bool(torch.isfinite(gradient).all()), f"{target.kind}: a gradient is not finite")
        alone = made.each(outputs[:1], y[:1])
        cause = f"{target.kind}: the loss of a prediction depends on the others of its batch"
        require(torch.allclose(alone, each[: len(alone)], rtol=1e-4, atol=1e-6), cause)


def _extremes(target: Target, outputs: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Random outputs, and those that are all right and all wrong: a state has to keep its bounds for each."""
    yield outputs
    if isinstance(target, Numbers):
        yield from (y, y + 1000, y - 1000)
    elif isinstance(target, Labels):
        yield from (y * 40 - 20, 20 - y * 40)
    else:
        right = torch.nn.functional.one_hot(y, target.n) * 20.0
        yield from (right, right.roll(1, 1))


def states_of_parts_add_up(metric: Metric) -> None:
    """The sum of the states of parts is the state of the whole, within its bounds, and has a value."""
    for target, drawn, labels in _samples(metric):
        drawn, y = rows_of(target, drawn, labels)
        for outputs in _extremes(target, drawn, y):
            _adds_up(metric_of_run(metric, {}, target, "metrics"), target, outputs.double(), y)


def _adds_up(made: MetricOfRun, target: Target, outputs: Tensor, y: Tensor) -> None:
    before = leaves((outputs, y))
    whole, n = made.state(outputs, y), len(y)
    require(leaves((outputs, y)) == before, f"{target.kind}: it changes outputs or targets")
    for cut in (1, n // 2):
        parts = [made.state(outputs[at], y[at]) for at in (slice(None, cut), slice(cut, None))]
        summed = tuple(a + b for a, b in zip(*parts, strict=True))
        require(summed == whole, f"{target.kind}: the states of two parts do not add up to that of the whole")
    for state, size in ((whole, n), *((made.state(outputs[i : i + 1], y[i : i + 1]), 1) for i in range(n))):
        fault = made.fault(state, size)
        require(fault is None, f"{target.kind}: {fault}; see `largest` and `possible`")
    value = made.value(whole)
    require(value is None or math.isfinite(value), f"{target.kind}: the value is {value}")
