"""The one training loop and the one evaluation loop.

Bits depend on the inputs only: batches are drawn with the generator handed in, images reach the model in
memory that torch allocated, convolutional models run channels-last always, and the tiers set one torch
thread. Only dropout and random transforms draw from torch's default generator; the caller seeds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.core.errors import BadInput, Cancelled, NotFinite
from shared.training.data.dataset import as_batch

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) -> mean loss of the batch."""
Objective = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(model, images, labels) -> (mean loss of the batch, logits), for losses that need more than the logits.

A loss of several passes may go back through each as soon as it is made, so that the memory of one is enough: what it
leaves in the parameters' gradients, which it finds empty, is then its gradient, and its value has no graph.
"""
Transform = Callable[[Tensor], Tensor]
"""Float images (batch, channels, height, width) -> the same, augmented or normalised."""
Correct = Callable[[list[Tensor], list[Tensor]], None]
"""(parameters, gradients): changes the gradients in place, after the backward pass and before the step."""
Step = Callable[[list[Tensor], list[Tensor]], None]
"""(parameters, gradients): changes the parameters in place; stands in for SGD."""
Stopped = Callable[[], bool]

CPU = torch.device("cpu")
SMALL_BYTES = 64 * 2**20
"""Up to this size as floats, a client's images are converted once and not batch by batch."""


@dataclass(frozen=True)
class Trained:
    """What a training did, counted where it was done.

    Attributes:
        n_samples: samples trained on, counted again in each epoch.
        n_steps: steps taken.
        loss: mean over these samples, each at the weights before its step; 0 without samples.
        n_correct: how many of them were classified rightly before their step.
    """

    n_samples: int
    n_steps: int
    loss: float
    n_correct: int


@dataclass(frozen=True)
class Evaluated:
    """An evaluation as sums, so that parts add up; `loss_sum` is the sum of the cross-entropies."""

    n: int
    n_correct: int
    loss_sum: float


def batches(
    x: npt.NDArray[np.uint8],
    y: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64] | Sequence[int],
    *,
    batch_size: int,
    generator: torch.Generator,
    epochs: int | None = None,
    steps: int | None = None,
    least: int = 1,
    device: torch.device = CPU,
) -> Iterator[Batch]:
    """Shuffled batches of some samples; each epoch is one shuffle, its last batch may be smaller.

    Args:
        x: images, uint8, (n, height, width[, channels]); may be a read-only memory map.
        y: labels, (n,).
        indices: the client's samples.
        batch_size: samples a batch.
        generator: the only source of randomness.
        epochs: how many times each sample comes; or
        steps: how many batches come, over as many epochs as that takes.
        least: samples that a batch must have, see `batch_sizes`.
        device: where they shall lie.

    Yields:
        Float images as `as_batch` makes them, and int64 labels.

    Raises:
        BadInput: not exactly one of epochs and steps, steps without samples, or a batch of fewer than `least`.
    """
    if (epochs is None) == (steps is None):
        raise BadInput("batches are counted either in epochs or in steps")
    if steps and not len(indices):
        raise BadInput("no samples to take steps on", field="steps")
    sizes = batch_sizes(len(indices), batch_size, least)
    if sizes and sizes[-1] < least:
        many, field = f"{sizes[-1]} of {len(indices)} samples", "partition" if len(indices) < least else "batch_size"
        raise BadInput(f"a batch of {many}: the model's batch-norm trains on {least} or more", field=field)
    n_batches = len(sizes) * epochs if epochs is not None else steps
    return _shuffled(x, y, np.asarray(indices, dtype=np.int64), sizes, generator, n_batches or 0, device)


def batch_sizes(n: int, batch_size: int, least: int = 1) -> list[int]:
    """Sizes of the batches of an epoch over n samples: full ones, and one of the rest.

    A rest of fewer than `least` joins the batch before it, so that each sample comes in each epoch.
    """
    full, rest = divmod(n, batch_size)
    sizes = [batch_size] * full + ([rest] if rest else [])
    if 0 < rest < least and full:
        sizes[-2:] = [batch_size + rest]
    return sizes


def _shuffled(
    x: npt.NDArray[np.uint8],
    y: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64],
    sizes: list[int],
    generator: torch.Generator,
    n_batches: int,
    device: torch.device,
) -> Iterator[Batch]:
    images, labels = _images_at(x, indices, device), torch.from_numpy(y[indices].astype(np.int64)).to(device)
    done = 0
    while done < n_batches:
        order = torch.randperm(len(indices), generator=generator)
        for chosen in torch.split(order, sizes)[: n_batches - done]:
            yield images(chosen), labels.index_select(0, chosen.to(device))
            done += 1


def _images_at(
    x: npt.NDArray[np.uint8], indices: npt.NDArray[np.int64], device: torch.device
) -> Callable[[Tensor], Tensor]:
    """A function from positions in `indices` to float images; the bits are the same on both ways."""
    if 4 * math.prod(x.shape[1:]) * len(indices) > SMALL_BYTES:
        return lambda chosen: as_batch(x[indices[chosen.numpy()]]).to(device)
    floats = as_batch(x[indices]).to(device)
    return lambda chosen: floats.index_select(0, chosen.to(device))  # five times as fast as floats[chosen]


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: Loss = functional.cross_entropy,
    objective: Objective | None = None,
    transform: Transform | None = None,
    correct: Correct | None = None,
    step: Step | None = None,
    stopped: Stopped | None = None,
) -> Trained:
    """Train a model in place: for each batch transform, forward, loss, backward, correct, step.

    The step is SGD as in `torch.optim.SGD` (weight decay added to the gradient, momentum without
    dampening), bit for bit. A gradient correction such as FedProx's adds to the gradients before that.

    Args:
        model: left in training mode; parameters that do not require gradients stay as they are.
        batches: float images and labels, see `batches`.
        lr: step size; with `step`, lr, momentum and weight_decay are that function's business.
        momentum: of SGD; the velocity starts at 0.
        weight_decay: of SGD.
        loss: of logits and labels, mean over the batch.
        objective: replaces forward pass and loss together.
        transform: applied to each batch's images.
        correct: changes gradients in place. A parameter without a gradient gets zeros.
        step: replaces SGD.
        stopped: asked before each batch.

    Raises:
        Cancelled: `stopped` said so.
        NotFinite: a loss, or a parameter at the end, is NaN or infinite; names the step.
    """
    with_layout = channels_last(model)
    model.train()
    parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    take_step = step or Sgd(lr, momentum, weight_decay)
    n_samples = n_steps = 0
    loss_sum, seen = 0.0, list[tuple[Tensor, Tensor]]()
    _forget(parameters)
    for x, y in batches:
        if stopped is not None and stopped():
            raise Cancelled(f"stopped after {n_steps} steps")
        x = with_layout(x if transform is None else transform(x))
        value, logits = objective(model, x, y) if objective else _forward(model, x, y, loss)
        mean = value.item()
        if not math.isfinite(mean):
            raise NotFinite(f"the loss is {mean} at step {n_steps + 1}")
        _descend(parameters, value, correct, take_step)
        seen.append((logits.detach(), y))
        n_steps += 1
        n_samples += len(y)
        loss_sum += mean * len(y)
    _refuse_not_finite(model, n_steps)
    return Trained(n_samples, n_steps, loss_sum / max(n_samples, 1), _n_correct(seen))


def evaluate(
    model: nn.Module,
    x: npt.NDArray[np.uint8],
    y: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64] | Sequence[int],
    *,
    batch_size: int = 512,
    transform: Transform | None = None,
    stopped: Stopped | None = None,
) -> Evaluated:
    """Count right answers and sum cross-entropies, in evaluation mode; the model's mode is restored.

    Args:
        model: not changed; images and labels are brought to where it lies.
        x: images, uint8, (n, height, width[, channels]).
        y: labels, (n,).
        indices: which samples, evaluated in this order.
        batch_size: part of what fixes the bits of `loss_sum`.
        transform: applied to each batch's images.
        stopped: asked before each batch.

    Raises:
        Cancelled: `stopped` said so.
        NotFinite: the loss is NaN or infinite.
    """
    chosen = np.asarray(indices, dtype=np.int64)
    with_layout, was_training = channels_last(model), model.training
    device = next(model.parameters()).device
    n_correct, loss_sum = 0, 0.0
    model.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(chosen), batch_size):
                if stopped is not None and stopped():
                    raise Cancelled(f"stopped after {start} of {len(chosen)} samples")
                part = chosen[start : start + batch_size]
                images, labels = as_batch(x[part]).to(device), torch.from_numpy(y[part].astype(np.int64)).to(device)
                logits = model(with_layout(images if transform is None else transform(images)))
                loss_sum += functional.cross_entropy(logits, labels, reduction="sum").item()
                n_correct += int((logits.argmax(1) == labels).sum())
    finally:
        model.train(was_training)
    if not math.isfinite(loss_sum):
        raise NotFinite(f"the loss is {loss_sum} in evaluation over {len(chosen)} samples")
    return Evaluated(len(chosen), n_correct, loss_sum)


# ---- pieces of a step


def _forward(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    logits = model(x)
    return loss(logits, y), logits


def _n_correct(seen: list[tuple[Tensor, Tensor]]) -> int:
    """How many of these (logits, labels) agree: counted once at the end, since a batch is small."""
    if not seen:
        return 0
    logits, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
    return int((logits.argmax(1) == labels).sum())


def _descend(parameters: list[Tensor], value: Tensor, correct: Correct | None, step: Step) -> None:
    """Backward, correct, step. No gradient outlives it: their memory is free for the next batch to use."""
    if value.requires_grad:
        value.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    with torch.no_grad():
        if correct is not None:
            correct(parameters, gradients)
        step(parameters, gradients)
    _forget(parameters)


def _forget(parameters: list[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


class Sgd:
    """SGD over all parameters at once; the velocities live as long as one training."""

    def __init__(self, lr: float, momentum: float, weight_decay: float) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.velocities: list[Tensor] | None = None

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """One step; the gradients are used up."""
        if self.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=self.weight_decay)
        if self.momentum:
            gradients = self._with_momentum(gradients)
        torch._foreach_add_(parameters, gradients, alpha=-self.lr)

    def _with_momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        if self.velocities is None:
            self.velocities = gradients
        else:
            torch._foreach_mul_(self.velocities, self.momentum)
            torch._foreach_add_(self.velocities, gradients)
        return self.velocities


def channels_last(model: nn.Module) -> Transform:
    """Bring a convolutional model to channels-last, in place; answers with what does the same to its images.

    Channels-last is faster on CPU and changes bits, so that it is decided here and by the model alone.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return lambda x: x
    module: Any = model
    module.to(memory_format=torch.channels_last)
    return lambda x: x.contiguous(memory_format=torch.channels_last)


def _refuse_not_finite(model: nn.Module, n_steps: int) -> None:
    sums = [tensor.detach().sum() for tensor in chain(model.parameters(), model.buffers())]  # one fast pass
    if all(math.isfinite(total.item()) for total in sums):
        return
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise NotFinite(f"{name} is not finite after step {n_steps}")
