"""The training loop for many devices at once: the stacked form of `shared.training.loop.train`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shared.core.errors import DIVERGES, Cancelled, NotFinite
from shared.training.description import Target
from shared.training.loop import CLASSES, Batch, Elementwise, Stopped, Trained, channels_last
from shared.training.models import Pristine, trainable_names
from shared.training.optimizers import Sgd
from shared.training.stacked.layers import Places, put, stacked
from shared.training.stacked.memory import stack_of


@dataclass(frozen=True)
class Device:
    """One device's training.

    Attributes:
        start: all tensors of the model.
        sizes: the number of samples of each of its batches.
        correct: its correction of the gradients.
        generator: the random stream of its dropout.
    """

    start: Mapping[str, Tensor]
    sizes: Sequence[int]
    correct: Elementwise | None = None
    generator: torch.Generator | None = None

    @property
    def n_steps(self) -> int:
        """Number of its steps, one for each batch."""
        return len(self.sizes)


_Step = tuple[Tensor, Tensor, Tensor, Tensor]
"""Mean losses and numbers of predictions of the places, (width,), and outputs and targets of all rows."""
Result = tuple[dict[str, Tensor], Trained] | NotFinite
"""A device's trained model and what its training counted, or why it failed."""


class StackTrainer:
    """Trains up to `width` devices at once.

    Args:
        model: the model of all devices; only its layers are read.
        width: number of places of the stack.
        target: what the model is to say of a sample.

    Raises:
        BadInput: a layer has no stacked form; the message names it.
    """

    def __init__(self, model: nn.Module, width: int, target: Target = CLASSES) -> None:
        self.width, self.target = width, target
        self.places = Places(width, rows=1)
        self._scratch = Pristine(stacked(model, self.places), watched=True)
        self.parameters = trainable_names(model)
        self.compute = next(model.parameters()).device
        self.with_layout = channels_last(model)

    def train(
        self,
        devices: Sequence[Device],
        rows: int,
        batches: Iterator[Batch],
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        stopped: Stopped | None = None,
    ) -> list[Result]:
        """Trains the devices, each on its own batches and for as many steps as it has batches.

        Args:
            devices: at most `width`, by falling number of steps, with equal functions as corrections.
            rows: rows of a place's batch, see `padded_rows`.
            batches: for each step the samples of all places, (width * rows, ...), and their targets; those of padding
                and of places that take no step are `IGNORED`, or 0 for numbers.
            lr, momentum, weight_decay: of SGD, as in `shared.training.loop.train`.
            stopped: called before each step.

        Returns:
            A result for each device; one that fails leaves the others as they are.

        Raises:
            Cancelled: `stopped` returned True.
        """
        network = self._scratch.restored()
        self.places.rows = rows
        self.places.generators = tuple(device.generator or torch.Generator() for device in devices)
        tensors = {
            name: stack_of([device.start[name] for device in devices], self.width, self.compute)
            for name in devices[0].start
        }
        leaves = [tensors[name].requires_grad_() for name in self.parameters]
        put(network, tensors)
        steps, counts = _Steps(devices, leaves, Sgd(lr, momentum, weight_decay)), self._counts(devices)
        seen: list[_Step] = []
        for step, (x, y) in enumerate(batches):
            if stopped is not None and stopped():
                raise Cancelled(f"stopped after {step} steps of {len(devices)} devices")
            self.places.n_active = sum(step < device.n_steps for device in devices)
            self.places.counts = counts[step]
            outputs, real = network(self.with_layout(x)), self.places.real()
            n = (self.target.weights(y).view(self.width, rows) * real).sum(1)
            losses = self.target.losses(outputs, y).view(self.width, rows) * real
            means = losses.sum(1) / n.clamp(min=1)
            steps.take(self.places.n_active, torch.autograd.grad(means.sum(), leaves, materialize_grads=True))
            seen.append((means.detach(), n, outputs.detach(), y))
        put(network, {})  # the results alone keep the tensors
        return _results(devices, tensors, seen, self.target)

    def _counts(self, devices: Sequence[Device]) -> Tensor:
        """Samples of each place in each step, (steps, width); all rows where a place takes no step."""
        counts = np.full((max(device.n_steps for device in devices), self.width), self.places.rows, dtype=np.float32)
        for place, device in enumerate(devices):
            counts[: device.n_steps, place] = device.sizes
        return torch.from_numpy(counts).to(self.compute)


class _Steps:
    """Corrections and SGD on stacked parameters; only the devices that still have batches take a step."""

    def __init__(self, devices: Sequence[Device], leaves: list[Tensor], sgd: Sgd) -> None:
        self.sgd, self.n_active = sgd, len(devices)
        self.parameters = [leaf.detach()[: self.n_active] for leaf in leaves]
        corrections = [device.correct for device in devices]
        for each in filter(None, corrections):
            each.check(len(leaves))
        self.correct = None if corrections[0] is None else corrections[0].function
        self.own = _stacked_lists([each.tensors for each in corrections if each is not None])

    def take(self, n_active: int, gradients: Sequence[Tensor]) -> None:
        """Takes a step with the first `n_active` devices; the gradients are overwritten."""
        if n_active < self.n_active:
            self.n_active = n_active
            self.parameters = [each[:n_active] for each in self.parameters]
            self.own = [[each[:n_active] for each in tensors] for tensors in self.own]
            self.sgd.keep_first(n_active)
        ours = [gradient[:n_active] for gradient in gradients]
        with torch.no_grad():
            if self.correct is not None:
                self.correct(self.parameters, ours, *self.own)
            self.sgd(self.parameters, ours)


def _stacked_lists(devices: Sequence[tuple[list[Tensor], ...]]) -> list[list[Tensor]]:
    """Returns the devices' tensors stacked; what is the same tensor for all is not copied."""

    def together(tensors: Sequence[Tensor]) -> Tensor:
        first = tensors[0]
        same = all(tensor is first for tensor in tensors)
        return first.expand(len(tensors), *first.shape) if same else stack_of(tensors, len(tensors), first.device)

    return [[together(tensors) for tensors in zip(*lists, strict=True)] for lists in zip(*devices, strict=True)]


def _results(
    devices: Sequence[Device], tensors: Mapping[str, Tensor], seen: Sequence[_Step], target: Target
) -> list[Result]:
    """The devices' results."""
    by_step, n_by_step, n_correct = [[0.0]] * len(devices), [[0.0]] * len(devices), [0] * len(devices)
    if seen:
        means, counts, outputs, targets = (torch.stack(parts) for parts in zip(*seen, strict=True))
        hits = target.hits(outputs, targets).view(*means.shape, -1).sum((0, 2))
        by_step, n_by_step, n_correct = means.T.tolist(), counts.T.tolist(), hits.tolist()
    held = {name: tensor.detach() for name, tensor in tensors.items()}
    totals = {name: tensor.reshape(len(tensor), -1).sum(1).tolist() for name, tensor in held.items()}
    found: list[Result] = []
    for place, device in enumerate(devices):
        own, predictions = by_step[place][: device.n_steps], n_by_step[place][: device.n_steps]
        odd = next((step for step, mean in enumerate(own) if not math.isfinite(mean)), None)
        name = next((name for name, total in totals.items() if not math.isfinite(total[place])), None)
        if odd is not None:
            found.append(NotFinite(f"the loss is {own[odd]} at step {odd + 1}{DIVERGES}"))
        elif name is not None and not held[name][place].isfinite().all():
            found.append(NotFinite(f"{name} is not finite after step {device.n_steps}{DIVERGES}"))
        else:
            n = int(sum(predictions))
            loss = sum(mean * size for mean, size in zip(own, predictions, strict=True)) / max(n, 1)
            model = {name: tensor[place] for name, tensor in held.items()}
            found.append((model, Trained(sum(device.sizes), device.n_steps, loss, n_correct[place], n)))
    return found
