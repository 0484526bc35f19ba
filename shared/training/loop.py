"""The training loop.

Results are bit-for-bit a function of the inputs: batches are drawn from the generator passed in, images lie in memory
that torch allocated, convolutional models always run channels-last, and the tiers set one torch thread. Only dropout
and random transforms draw from torch's default generator, which the caller seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from shared.core.errors import DIVERGES, BadInput, Cancelled, NotFinite
from shared.training.data.dataset import as_batch, as_targets
from shared.training.dense import Gradients, dense_gradients
from shared.training.description import Classes, Target
from shared.training.models.parts import parts_of
from shared.training.optimizers import Sgd
from shared.training.sample_cache import SampleCache

Batch = tuple[Tensor, Tensor]
Encode = Callable[[npt.NDArray[Any]], Tensor]
"""Samples of a data set -> the input of models, see `Dataset.encode`."""
LossFunction = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> mean loss of the batch."""
WeightOf = Callable[[Tensor], float]
"""targets -> sum of the weights of a batch's predictions in the mean loss."""
Objective = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(model, samples, targets) -> (mean loss of the batch, outputs), for losses that need more than the outputs.

An objective of several passes may call `backward` on each pass at once, so that only one pass's graph is in memory. The
parameters' gradients are empty when it is called; it returns a loss without a graph, and the loop uses the gradients
that it accumulated.
"""
Transform = Callable[[Tensor], Tensor]
"""Samples (batch, ...) -> the augmented or normalised samples."""
Correct = Callable[[list[Tensor], list[Tensor]], None]
"""(parameters, gradients): corrects the gradients in place, after the backward pass and before the step."""


@dataclass(frozen=True)
class Elementwise:
    """A correction (`Correct`) that can be applied to one device's tensors and to those of many devices, stacked.

    Attributes:
        function: (parameters, gradients, *tensors): corrects the gradients in place. An element of a result depends on
            the same element of each argument alone. Functions that are equal are called once for all their devices.
        tensors: the device's own tensors, each list in the order of the trainable parameters.
    """

    function: Callable[..., None]
    tensors: tuple[list[Tensor], ...] = ()

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Corrects one device's gradients."""
        self.check(len(parameters))
        self.function(parameters, gradients, *self.tensors)

    def check(self, n: int) -> None:
        """Checks that there is a tensor for each of n trainable parameters.

        Raises:
            BadInput: there is not; says where their names are.
        """
        odd = next((len(tensors) for tensors in self.tensors if len(tensors) != n), None)
        if odd is not None:
            cause = f"a correction has {odd} tensors, the model {n} trainable parameters"
            raise BadInput(f"{cause}: hooks find their names in `ctx.model.trainable_names`", field="algorithm.name")


Step = Callable[[list[Tensor], list[Tensor]], None]
"""(parameters, gradients): changes the parameters in place; replaces SGD."""
Stopped = Callable[[], bool]
"""Returns whether training or evaluation is to stop."""

CPU = torch.device("cpu")
SMALL_BYTES = 64 * 2**20
"""Upper bound on the bytes of a client's samples for which they are converted once, not batch by batch."""
CLASSES = Classes(1)
"""The target of the default loss, the cross-entropy, whatever the number of classes."""


@dataclass(frozen=True)
class Trained:
    """Result of a training.

    Attributes:
        n_samples: number of samples trained on; a sample counts once an epoch.
        n_steps: number of steps.
        loss: mean loss over the predictions on these samples, each with the weights before its step; 0 without any.
        n_correct: number of these predictions that were right before their step.
        n_predictions: number of predictions: one for each sample, or for each token of a sequence.
        loss_weight: sum of their weights in the mean loss; None where each counts once.
    """

    n_samples: int
    n_steps: int
    loss: float
    n_correct: int
    n_predictions: int
    loss_weight: float | None = None


def batches(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    indices: npt.NDArray[np.int64] | Sequence[int],
    *,
    batch_size: int,
    generator: torch.Generator,
    epochs: int | None = None,
    steps: int | None = None,
    least: int = 1,
    device: torch.device = CPU,
    cache: SampleCache | None = None,
    encode: Encode = as_batch,
) -> Iterator[Batch]:
    """Returns shuffled batches of some samples; each epoch is one shuffle, whose last batch may be smaller.

    Args:
        x: samples, (n, ...); may be a read-only memory map.
        y: targets, (n, ...).
        indices: the client's samples.
        batch_size: number of samples of a batch.
        generator: the only source of randomness.
        epochs: number of epochs; None if `steps` is given.
        steps: number of batches, over as many epochs as needed; None if `epochs` is given.
        least: least number of samples of a batch, see `batch_sizes`.
        device: device of the batches.
        cache: of encoded samples of `x`.
        encode: that of the data set.

    Yields:
        Samples as `encode` returns them, and targets.

    Raises:
        BadInput: not exactly one of epochs and steps, steps without samples, or a batch of fewer than `least` samples.
    """
    chosen = shuffles(len(indices), batch_size=batch_size, generator=generator, epochs=epochs, steps=steps, least=least)
    return _at(x, y, np.asarray(indices, dtype=np.int64), chosen, device, cache, encode)


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
        for chosen in order.split_with_sizes(sizes)[: n_batches - done]:
            yield chosen
            done += 1


def _at(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    indices: npt.NDArray[np.int64],
    positions: Iterator[Tensor],
    device: torch.device,
    cache: SampleCache | None,
    encode: Encode,
) -> Iterator[Batch]:
    samples, targets = samples_at(x, indices, device, cache, encode), as_targets(y[indices]).to(device)
    for chosen in positions:
        yield samples(chosen), targets.index_select(0, chosen.to(device))


def samples_at(
    x: npt.NDArray[Any],
    indices: npt.NDArray[np.int64],
    device: torch.device,
    cache: SampleCache | None = None,
    encode: Encode = as_batch,
) -> Callable[[Tensor], Tensor]:
    """Returns a function from positions in `indices` to samples; bits are the same encoded once or by batch."""
    if max(x.itemsize, 4) * math.prod(x.shape[1:]) * len(indices) > SMALL_BYTES:
        return lambda chosen: encode(x[indices[chosen.numpy()]]).to(device)
    made = encode(x[indices]).to(device) if cache is None else cache.batch(x, indices, device)
    return lambda chosen: made.index_select(0, chosen.to(device))  # five times as fast as made[chosen]


def train(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: LossFunction | None = None,
    objective: Objective | None = None,
    transform: Transform | None = None,
    correct: Correct | None = None,
    step: Step | None = None,
    stopped: Stopped | None = None,
    target: Target = CLASSES,
    weight_of: WeightOf | None = None,
) -> Trained:
    """Trains a model in place: for each batch transform, forward, loss, backward, correct, step.

    The step is SGD and equals `torch.optim.SGD` bit for bit (weight decay added to the gradient, momentum without
    dampening). A gradient correction such as FedProx's is applied to the gradients before weight decay.

    Args:
        model: left in training mode; parameters that do not require gradients do not change.
        batches: samples and targets, see `batches`.
        lr: learning rate of SGD; lr, momentum and weight_decay are not used if `step` is given.
        momentum, weight_decay: those of SGD; the velocity starts at 0.
        loss: mean loss of a batch of outputs and targets; None means that of `target`.
        objective: replaces forward pass and loss together.
        transform: applied to each batch's samples.
        correct: corrects the gradients in place; a parameter that the loss does not depend on has gradient 0.
        step: replaces SGD.
        stopped: called before each batch; training ends if it returns True.
        target: what the model is to say; it counts predictions and hits.
        weight_of: of the loss; None means that each prediction counts once in its mean.

    Raises:
        Cancelled: `stopped` returned True.
        NotFinite: a loss, or a parameter after training, is NaN or infinite; the message names the step.
    """
    with_layout, parts = channels_last(model), parts_of(model)
    parts.set_training(True)
    parameters: list[Tensor] = [p for p in parts.parameters if p.requires_grad]
    gradients_of = _gradients_of(model, parameters, loss, objective, target)
    take_step = step or Sgd(lr, momentum, weight_decay)
    n_samples = n_steps = 0
    mean_loss, hits = _MeanLoss(target, weight_of), _Hits(target)
    for x, y in batches:
        if stopped is not None and stopped():
            raise Cancelled(f"stopped after {n_steps} steps")
        x = with_layout(x if transform is None else transform(x))
        value, outputs, gradients = gradients_of(x, y)
        mean_loss.add(value.item(), y, n_steps + 1)
        _change(parameters, gradients, correct, take_step)
        del gradients  # the next batch can reuse their memory
        hits.add(outputs.detach(), y)
        n_steps, n_samples = n_steps + 1, n_samples + y.size(0)
    _check_finite(model, n_steps)
    return Trained(n_samples, n_steps, mean_loss.value, hits.total(), mean_loss.n, mean_loss.apart)


# ---- pieces of a step


def _gradients_of(
    model: nn.Module, parameters: list[Tensor], loss: LossFunction | None, objective: Objective | None, target: Target
) -> Callable[[Tensor, Tensor], Gradients]:
    """Returns what gives loss, outputs and gradients of a batch; without autograd where the bits are the same."""
    if objective is None and loss is None and isinstance(target, Classes) and (dense := dense_gradients(model)):
        return dense
    _drop_gradients(parameters)
    return partial(_by_autograd, model, parameters, objective or partial(_forward, loss=loss or target.loss))


def _forward(model: nn.Module, x: Tensor, y: Tensor, loss: LossFunction) -> tuple[Tensor, Tensor]:
    outputs = model(x)
    return loss(outputs, y), outputs


def _by_autograd(model: nn.Module, parameters: list[Tensor], objective: Objective, x: Tensor, y: Tensor) -> Gradients:
    """Loss, outputs and gradients of a batch; no parameter keeps its gradient."""
    value, outputs = objective(model, x, y)
    if value.requires_grad:
        value.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    _drop_gradients(parameters)
    return value, outputs, gradients


class _MeanLoss:
    """The mean loss over the predictions of batches, by their weights if the loss has weights."""

    def __init__(self, target: Target, weight_of: WeightOf | None) -> None:
        self.target, self.weight_of = target, weight_of
        self.n, self.sum, self.weight = 0, 0.0, 0.0

    def add(self, mean: float, y: Tensor, step: int) -> None:
        """Adds the mean loss of a step's batch.

        Raises:
            NotFinite: it is NaN or infinite; the message names the step.
        """
        if not math.isfinite(mean):
            raise NotFinite(f"the loss is {mean} at step {step}{DIVERGES}")
        n = self.target.n_predictions(y)
        weight = n if self.weight_of is None else self.weight_of(y)
        self.n, self.sum, self.weight = self.n + n, self.sum + mean * weight, self.weight + weight

    @property
    def value(self) -> float:
        """The mean loss so far; 0 without predictions."""
        return self.sum / (self.weight or 1)

    @property
    def apart(self) -> float | None:
        """The sum of the weights; None where each prediction counts once."""
        return None if self.weight_of is None else self.weight


class _Hits:
    """Counts right predictions, those of many small batches at once for speed."""

    MOST_ELEMENTS = 2**20

    def __init__(self, target: Target) -> None:
        self.target, self.n, self.n_elements = target, 0, 0
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def add(self, outputs: Tensor, y: Tensor) -> None:
        """Adds a batch."""
        self.waiting.append((outputs, y))
        self.n_elements += outputs.numel()
        if self.n_elements > self.MOST_ELEMENTS:
            self.total()

    def total(self) -> int:
        """Returns the number of right predictions so far."""
        if self.waiting:
            outputs, targets = (torch.cat(parts) for parts in zip(*self.waiting, strict=True))
            self.n += int(self.target.hits(outputs, targets).sum())
        self.waiting, self.n_elements = [], 0
        return self.n


def _change(parameters: list[Tensor], gradients: list[Tensor], correct: Correct | None, step: Step) -> None:
    with torch.no_grad():
        if correct is not None:
            correct(parameters, gradients)
        step(parameters, gradients)


def _drop_gradients(parameters: list[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def channels_last(model: nn.Module) -> Transform:
    """Lays out a convolutional model channels-last, in place, and returns a function that lays out its images alike.

    Channels-last is faster on the CPU but changes bits; the layout therefore depends on the model only.
    """
    parts = parts_of(model)
    if not parts.is_convolutional:
        return lambda x: x
    parts.lay_out()
    return lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def _check_finite(model: nn.Module, n_steps: int) -> None:
    sums = [tensor.detach().sum() for tensor in parts_of(model).tensors]  # one fast pass
    if all(math.isfinite(total.item()) for total in sums):
        return
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise NotFinite(f"{name} is not finite after step {n_steps}{DIVERGES}")
