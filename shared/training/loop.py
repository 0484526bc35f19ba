"""The training loop and the evaluation loop.

Results are bit-for-bit a function of the inputs: batches are drawn from the generator passed in, images lie in memory
that torch allocated, convolutional models always run channels-last, and the tiers set one torch thread. Only dropout
and random transforms draw from torch's default generator, which the caller seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.core.errors import BadInput, Cancelled, NotFinite
from shared.core.scores import State, added
from shared.training.data.dataset import as_batch
from shared.training.image_cache import ImageCache

Batch = tuple[Tensor, Tensor]
LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) -> mean loss of the batch."""
StatesFunction = Callable[[Tensor, Tensor], Mapping[str, State]]
"""(logits, labels) -> by label, the state of each metric on this batch."""
Objective = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(model, images, labels) -> (mean loss of the batch, logits), for losses that need more than the logits.

An objective of several passes may call `backward` on each pass at once, so that only one pass's graph is in memory. The
parameters' gradients are empty when it is called; it returns a loss without a graph, and the loop uses the gradients
that it accumulated.
"""
Transform = Callable[[Tensor], Tensor]
"""Float images (batch, channels, height, width) -> the augmented or normalised images."""
Correct = Callable[[list[Tensor], list[Tensor]], None]
"""(parameters, gradients): corrects the gradients in place, after the backward pass and before the step."""


@dataclass(frozen=True)
class Elementwise:
    """A correction (`Correct`) that can be applied to one device's tensors and to those of many devices, stacked.

    Attributes:
        function: (parameters, gradients, *tensors): corrects the gradients in place. An element of a result depends on
            the same element of each argument alone. Functions that are equal are called once for all their devices.
        tensors: the device's own tensors, each list in the order of the parameters.
    """

    function: Callable[..., None]
    tensors: tuple[list[Tensor], ...] = ()

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Corrects one device's gradients."""
        self.function(parameters, gradients, *self.tensors)


Step = Callable[[list[Tensor], list[Tensor]], None]
"""(parameters, gradients): changes the parameters in place; replaces SGD."""
Stopped = Callable[[], bool]
"""Returns whether training or evaluation is to stop."""

CROSS_ENTROPIES: LossFunction = nn.CrossEntropyLoss(reduction="sum")
CPU = torch.device("cpu")
SMALL_BYTES = 64 * 2**20
"""Upper bound on the bytes of a client's float images for which they are converted once, not batch by batch."""


@dataclass(frozen=True)
class Trained:
    """Result of a training.

    Attributes:
        n_samples: number of samples trained on; a sample counts once an epoch.
        n_steps: number of steps.
        loss: mean loss over these samples, each with the weights before its step; 0 without samples.
        n_correct: number of these samples that were classified correctly before their step.
    """

    n_samples: int
    n_steps: int
    loss: float
    n_correct: int


@dataclass(frozen=True)
class Evaluated:
    """Result of an evaluation as sums, which can be added: counts, losses, and by label the states of metrics."""

    n: int
    n_correct: int
    loss_sum: float
    states: Mapping[str, State] = field(default_factory=dict)


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
    cache: ImageCache | None = None,
) -> Iterator[Batch]:
    """Returns shuffled batches of some samples; each epoch is one shuffle, whose last batch may be smaller.

    Args:
        x: images, uint8, (n, height, width[, channels]); may be a read-only memory map.
        y: labels, (n,).
        indices: the client's samples.
        batch_size: number of samples of a batch.
        generator: the only source of randomness.
        epochs: number of epochs; None if `steps` is given.
        steps: number of batches, over as many epochs as needed; None if `epochs` is given.
        least: least number of samples of a batch, see `batch_sizes`.
        device: device of the batches.
        cache: of float images of `x`.

    Yields:
        Float images as `as_batch` returns them, and int64 labels.

    Raises:
        BadInput: not exactly one of epochs and steps, steps without samples, or a batch of fewer than `least` samples.
    """
    chosen = shuffles(len(indices), batch_size=batch_size, generator=generator, epochs=epochs, steps=steps, least=least)
    return _at(x, y, np.asarray(indices, dtype=np.int64), chosen, device, cache)


def shuffles(
    n: int,
    *,
    batch_size: int,
    generator: torch.Generator,
    epochs: int | None = None,
    steps: int | None = None,
    least: int = 1,
) -> Iterator[Tensor]:
    """Returns the positions, among n samples, of each batch that `batches` returns with the same arguments.

    Raises:
        BadInput: as `batches`.
    """
    if (epochs is None) == (steps is None):
        raise BadInput("batches need either epochs or steps")
    if steps and not n:
        raise BadInput("no samples to take steps on", field="steps")
    sizes = batch_sizes(n, batch_size, least)
    if sizes and sizes[-1] < least:
        field = "partition" if n < least else "batch_size"
        few = f"a batch has {sizes[-1]} of {n} samples"
        raise BadInput(f"{few}; the model's batch-norm needs {least} or more to train", field=field)
    n_batches = len(sizes) * epochs if epochs is not None else steps
    return _shuffled(n, sizes, generator, n_batches or 0)


def batch_sizes(n: int, batch_size: int, least: int = 1) -> list[int]:
    """Returns the sizes of the batches of an epoch over n samples: full batches, then one with the remaining samples.

    If fewer than `least` samples remain, they join the batch before, so that every epoch has all samples.
    """
    full, rest = divmod(n, batch_size)
    sizes = [batch_size] * full + ([rest] if rest else [])
    if 0 < rest < least and full:
        sizes[-2:] = [batch_size + rest]
    return sizes


def _shuffled(n: int, sizes: list[int], generator: torch.Generator, n_batches: int) -> Iterator[Tensor]:
    done = 0
    while done < n_batches:
        order = torch.randperm(n, generator=generator)
        for chosen in torch.split(order, sizes)[: n_batches - done]:
            yield chosen
            done += 1


def _at(
    x: npt.NDArray[np.uint8],
    y: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64],
    positions: Iterator[Tensor],
    device: torch.device,
    cache: ImageCache | None,
) -> Iterator[Batch]:
    images, labels = images_at(x, indices, device, cache), torch.from_numpy(y[indices].astype(np.int64)).to(device)
    for chosen in positions:
        yield images(chosen), labels.index_select(0, chosen.to(device))


def images_at(
    x: npt.NDArray[np.uint8], indices: npt.NDArray[np.int64], device: torch.device, cache: ImageCache | None = None
) -> Callable[[Tensor], Tensor]:
    """Returns a function from positions in `indices` to float images; bits are the same converted once or by batch."""
    if 4 * math.prod(x.shape[1:]) * len(indices) > SMALL_BYTES:
        return lambda chosen: as_batch(x[indices[chosen.numpy()]]).to(device)
    floats = as_batch(x[indices]).to(device) if cache is None else cache.floats(x, indices, device)
    return lambda chosen: floats.index_select(0, chosen.to(device))  # five times as fast as floats[chosen]


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: LossFunction = functional.cross_entropy,
    objective: Objective | None = None,
    transform: Transform | None = None,
    correct: Correct | None = None,
    step: Step | None = None,
    stopped: Stopped | None = None,
) -> Trained:
    """Trains a model in place: for each batch transform, forward, loss, backward, correct, step.

    The step is SGD and equals `torch.optim.SGD` bit for bit (weight decay added to the gradient, momentum without
    dampening). A gradient correction such as FedProx's is applied to the gradients before weight decay.

    Args:
        model: left in training mode; parameters that do not require gradients do not change.
        batches: float images and labels, see `batches`.
        lr: learning rate of SGD; lr, momentum and weight_decay are not used if `step` is given.
        momentum: momentum of SGD; the velocity starts at 0.
        weight_decay: weight decay of SGD.
        loss: loss of logits and labels, mean over the batch.
        objective: replaces forward pass and loss together.
        transform: applied to each batch's images.
        correct: corrects the gradients in place; a parameter that the loss does not depend on has gradient 0.
        step: replaces SGD.
        stopped: called before each batch; training ends if it returns True.

    Raises:
        Cancelled: `stopped` returned True.
        NotFinite: a loss, or a parameter after training, is NaN or infinite; the message names the step.
    """
    with_layout = channels_last(model)
    model.train()
    parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    take_step = step or Sgd(lr, momentum, weight_decay)
    n_samples = n_steps = 0
    loss_sum, predictions = 0.0, list[tuple[Tensor, Tensor]]()
    _drop_gradients(parameters)
    for x, y in batches:
        if stopped is not None and stopped():
            raise Cancelled(f"stopped after {n_steps} steps")
        x = with_layout(x if transform is None else transform(x))
        value, logits = objective(model, x, y) if objective else _forward(model, x, y, loss)
        mean = value.item()
        if not math.isfinite(mean):
            raise NotFinite(f"the loss is {mean} at step {n_steps + 1}")
        _take_step(parameters, value, correct, take_step)
        predictions.append((logits.detach(), y))
        n_steps += 1
        n_samples += len(y)
        loss_sum += mean * len(y)
    _check_finite(model, n_steps)
    return Trained(n_samples, n_steps, loss_sum / max(n_samples, 1), _n_correct(predictions))


def evaluate(
    model: nn.Module,
    x: npt.NDArray[np.uint8],
    y: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64] | Sequence[int],
    *,
    batch_size: int = 512,
    loss_sum_of: LossFunction = CROSS_ENTROPIES,
    states_of: StatesFunction | None = None,
    transform: Transform | None = None,
    stopped: Stopped | None = None,
) -> Evaluated:
    """Evaluates a model in evaluation mode: counts correct predictions, sums losses and the states of metrics.

    Args:
        model: not changed, its mode is restored; images and labels are copied to its device.
        x: images, uint8, (n, height, width[, channels]).
        y: labels, (n,).
        indices: the samples, evaluated in this order.
        batch_size: number of samples of a batch; `loss_sum` depends on it in its last bits.
        loss_sum_of, states_of: return the sum of a batch's losses, and the states of the metrics to measure.
        transform: applied to each batch's images.
        stopped: called before each batch; the evaluation ends if it returns True.

    Raises:
        Cancelled: `stopped` returned True.
        NotFinite: the loss is NaN or infinite.
    """
    chosen = np.asarray(indices, dtype=np.int64)
    with_layout, was_training = channels_last(model), model.training
    device = next(model.parameters()).device
    n_correct, loss_sum, states = 0, 0.0, dict[str, State]()
    model.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(chosen), batch_size):
                if stopped is not None and stopped():
                    raise Cancelled(f"stopped after {start} of {len(chosen)} samples")
                part = chosen[start : start + batch_size]
                images, labels = as_batch(x[part]).to(device), torch.from_numpy(y[part].astype(np.int64)).to(device)
                logits = model(with_layout(images if transform is None else transform(images)))
                loss_sum += loss_sum_of(logits, labels).item()
                if not math.isfinite(loss_sum):
                    raise NotFinite(f"the loss is {loss_sum} in an evaluation on {len(chosen)} samples")
                n_correct += int((logits.argmax(1) == labels).sum())
                states = states if states_of is None else added(states, states_of(logits, labels))
    finally:
        model.train(was_training)
    return Evaluated(len(chosen), n_correct, loss_sum, states)


# ---- pieces of a step


def _forward(model: nn.Module, x: Tensor, y: Tensor, loss: LossFunction) -> tuple[Tensor, Tensor]:
    logits = model(x)
    return loss(logits, y), logits


def _n_correct(predictions: list[tuple[Tensor, Tensor]]) -> int:
    """Returns the number of correct predictions in pairs of (logits, labels), counted at once for speed."""
    if not predictions:
        return 0
    logits, labels = (torch.cat(parts) for parts in zip(*predictions, strict=True))
    return int((logits.argmax(1) == labels).sum())


def _take_step(parameters: list[Tensor], value: Tensor, correct: Correct | None, step: Step) -> None:
    """Backward pass, correction and step; then drops the gradients, so that the next batch can reuse their memory."""
    if value.requires_grad:
        value.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    with torch.no_grad():
        if correct is not None:
            correct(parameters, gradients)
        step(parameters, gradients)
    _drop_gradients(parameters)


def _drop_gradients(parameters: list[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


class Sgd:
    """SGD on all parameters at once; its velocities last for one training."""

    def __init__(self, lr: float, momentum: float, weight_decay: float) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.velocities: list[Tensor] | None = None

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Takes one step in place; the gradients are overwritten."""
        if self.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=self.weight_decay)
        if self.momentum:
            gradients = self._with_momentum(gradients)
        torch._foreach_add_(parameters, gradients, alpha=-self.lr)

    def keep_first(self, n: int) -> None:
        """Drops the velocities of all but the first n of the devices whose tensors are stacked."""
        if self.velocities is not None:
            self.velocities = [velocity[:n] for velocity in self.velocities]

    def _with_momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        if self.velocities is None:
            self.velocities = gradients
        else:
            torch._foreach_mul_(self.velocities, self.momentum)
            torch._foreach_add_(self.velocities, gradients)
        return self.velocities


def channels_last(model: nn.Module) -> Transform:
    """Lays out a convolutional model channels-last, in place, and returns a function that lays out its images alike.

    Channels-last is faster on the CPU but changes bits; the layout therefore depends on the model only.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return lambda x: x
    module: Any = model
    module.to(memory_format=torch.channels_last)
    return lambda x: x.contiguous(memory_format=torch.channels_last)


def _check_finite(model: nn.Module, n_steps: int) -> None:
    sums = [tensor.detach().sum() for tensor in chain(model.parameters(), model.buffers())]  # one fast pass
    if all(math.isfinite(total.item()) for total in sums):
        return
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise NotFinite(f"{name} is not finite after step {n_steps}")
