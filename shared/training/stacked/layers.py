"""Layers of many devices at once.

Activations have the layout of an ordinary batch, (width * rows, ...): the rows of the first device, then those of the
second, and so on. So layers without parameters that treat each sample by itself, and a model's own `forward`, stay as
they are; only layers with parameters, with statistics or with random numbers must know where a device's rows begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shared.core.errors import BadInput
from shared.training.models import copied, tied_names
from shared.training.stacked.convolution import StackedConvolution, Windows
from shared.training.stacked.memory import empty_stack

PER_SAMPLE: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.Flatten,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Identity,
)
"""Layers that treat each sample by itself and give it the same bits wherever it lies."""


@dataclass
class Places:
    """The devices of the present step, by their place in the stack.

    Attributes:
        width: number of places, dummies included.
        rows: rows of each place, padding included.
        n_active: number of devices that take this step; they have the first places.
        counts: samples of each place, (width,); all rows for a place that takes no step.
        generators: by place, the device's random stream for dropout, on the CPU.
    """

    width: int
    rows: int
    n_active: int = 0
    counts: Tensor = field(default_factory=lambda: torch.empty(0))
    generators: tuple[torch.Generator, ...] = ()

    def real(self) -> Tensor:
        """1 for the row of a sample, 0 for padding, (width, rows)."""
        rows = torch.arange(self.rows, device=self.counts.device)
        return (rows < self.counts.unsqueeze(1)).to(torch.float32)

    def split(self, x: Tensor) -> Tensor:
        """Returns rows by place: (width * rows, ...) as (width, rows, ...), a view."""
        return x.view(self.width, self.rows, *x.shape[1:])


class StackedLayer(nn.Module):
    """A layer of many devices.

    Attributes:
        places: the devices of the present step, shared by all layers.
        tensors: its stacked parameters and buffers by their name within the layer.
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self.places = places
        self.tensors: dict[str, Tensor] = {}


class _Product(torch.autograd.Function):
    """X W^T + b for each place, with gradients in aligned memory, as the bits of products depend on it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:  # (places, rows, in), (.., out, in)
        ctx.save_for_backward(x, weight)
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        above = outer[0].contiguous()
        into_weight = None
        if of_weight:
            into_weight = empty_stack(len(weight), weight.shape[1:], weight.dtype, weight.device)
            torch.bmm(above.mT, x, out=into_weight)
        return torch.bmm(above, weight) if of_x else None, into_weight, above.sum(1) if of_bias else None


class StackedLinear(StackedLayer):
    """`nn.Linear` as batched matrix products."""

    def __init__(self, layer: nn.Linear, places: Places) -> None:
        super().__init__(places)

    def forward(self, x: Tensor) -> Tensor:
        """(width * rows, in) -> (width * rows, out)."""
        found: Tensor = _Product.apply(self.places.split(x), self.tensors["weight"], self.tensors.get("bias"))  # type: ignore[no-untyped-call]
        return found.flatten(0, 1)


class StackedConv2d(StackedLayer):
    """`nn.Conv2d`: on the CPU one convolution after another, on a GPU one batched product, or one in groups.

    Depthwise and other grouped convolutions are grouped ones of more groups there.
    """

    def __init__(self, layer: nn.Conv2d, places: Places) -> None:
        super().__init__(places)
        how: Any = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
        self.convolved: Callable[..., Tensor] = partial(functional.conv2d, **how)
        self.groups = layer.groups
        left_right, top_bottom = layer._reversed_padding_repeated_twice[:2], layer._reversed_padding_repeated_twice[2:]
        self.windows = Windows(layer.kernel_size, layer.stride, layer.dilation, (*left_right, *top_bottom))

    def forward(self, x: Tensor) -> Tensor:
        """(width * rows, in, height, width) -> (width * rows, out, ...)."""
        weight, bias = self.tensors["weight"], self.tensors.get("bias")
        if x.device.type == "cpu":
            return self.of_each(x, weight, bias)
        return self.in_windows(x, weight, bias) if self.groups == 1 else self.grouped(x, weight, bias)

    def in_windows(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One batched product of the inputs under all windows with the devices' weights."""
        found: Tensor = StackedConvolution.apply(x, weight, bias, self.windows)  # type: ignore[no-untyped-call]
        return found

    def of_each(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One convolution after another, each of one device's rows."""
        biases = [None] * len(weight) if bias is None else bias.unbind()
        rows = zip(self.places.split(x).unbind(), weight.unbind(), biases, strict=True)
        made = [
            self.convolved(images, own.contiguous(memory_format=torch.channels_last), b, groups=self.groups)
            for images, own, b in rows
        ]
        return torch.cat(made)

    def grouped(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """One convolution, with the channels of all devices beside each other."""
        beside = self.places.split(x).transpose(0, 1).flatten(1, 2)  # (rows, width * in, height, width)
        flat = None if bias is None else bias.reshape(-1)
        groups = self.groups * self.places.width
        made = self.convolved(beside, weight.flatten(0, 1), flat, groups=groups)
        return made.view(len(made), self.places.width, -1, *made.shape[2:]).transpose(0, 1).flatten(0, 1)


class StackedBatchNorm(StackedLayer):
    """`nn.BatchNorm1d` and `nn.BatchNorm2d`: statistics of each device's samples, padding left out.

    In evaluation mode, in which a model may keep a frozen part while it trains, they are the running ones.
    """

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm, places: Places) -> None:
        super().__init__(places)
        self.momentum, self.eps = layer.momentum or 0.0, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        """(width * rows, channels, ...) -> the same."""
        rows = self.places.split(x)
        ones = [1] * (rows.dim() - 2)
        weight, bias = (self._of_channels(name, ones) for name in ("weight", "bias"))
        if self.training:
            centred, variance = self._centred(rows, ones)
        else:
            centred, variance = rows - self._of_channels("running_mean", ones), self._of_channels("running_var", ones)
        normal: Tensor = centred * torch.rsqrt(variance + self.eps) * weight + bias
        return normal.flatten(0, 1)

    def _of_channels(self, name: str, ones: list[int]) -> Tensor:
        """A tensor of a value for each channel, as (width, 1, channels, ...)."""
        tensor = self.tensors[name]
        return tensor.view(len(tensor), 1, -1, *ones[1:])

    def _centred(self, rows: Tensor, ones: list[int]) -> tuple[Tensor, Tensor]:
        """The rows minus their mean, and their variance; tracks both."""
        across = [1, *range(3, rows.dim())]  # all dimensions but places and channels
        real = self.places.real().view(*rows.shape[:2], *ones)
        n = self.places.counts.view(-1, 1, *ones) * rows[0, 0, 0].numel()
        mean = (rows * real).sum(across, keepdim=True) / n
        centred = rows - mean
        variance = (centred.square() * real).sum(across, keepdim=True) / n
        self._track(mean.detach(), (variance * (n / (n - 1).clamp(min=1))).detach())
        return centred, variance

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        first, kept = self.places.n_active, self.tensors
        for name, value in (("running_mean", mean), ("running_var", variance)):
            kept[name][:first].lerp_(value.reshape(kept[name].shape)[:first], self.momentum)
        kept["num_batches_tracked"][:first] += 1


class StackedDropout(StackedLayer):
    """`nn.Dropout`, whose masks come from each device's own random stream; in evaluation mode none."""

    def __init__(self, layer: nn.Dropout, places: Places) -> None:
        super().__init__(places)
        self.keep = 1 - layer.p

    def forward(self, x: Tensor) -> Tensor:
        """Keeps a share of each sample's values, and scales them so that their mean stays."""
        if not self.training:
            return x
        masks = torch.zeros(self.places.width, self.places.rows, *x.shape[1:])
        counts = self.places.counts[: self.places.n_active].tolist()
        for mask, n, generator in zip(masks, counts, self.places.generators, strict=False):
            mask[: int(n)].bernoulli_(self.keep, generator=generator)
        return x * masks.flatten(0, 1).to(x.device).div_(self.keep)


STACKED: Mapping[type[nn.Module], Callable[[Any, Places], StackedLayer]] = {
    nn.Linear: StackedLinear,
    nn.Conv2d: StackedConv2d,
    nn.BatchNorm1d: StackedBatchNorm,
    nn.BatchNorm2d: StackedBatchNorm,
    nn.Dropout: StackedDropout,
}
"""The layers that have a stacked form."""


def check_layers(model: nn.Module) -> None:
    """Checks that a model consists of layers whose stacked form gives a device the same bits at each place.

    Raises:
        BadInput: names the first layer that has none.
    """
    for name, first in tied_names(model).items():
        shared = f"{name} is the same tensor as {first}"
        raise BadInput(f"vectorised: {shared}, so the model trains one device at a time only", field="vectorised")
    for name, module in model.named_modules():
        why = _why_not(module)
        if why is not None:
            what = f"{name or 'the model itself'} ({type(module).__name__}) {why}"
            raise BadInput(f"vectorised: {what}, so it trains one device at a time only", field="vectorised")


def _why_not(module: nn.Module) -> str | None:
    if isinstance(module, nn.Conv2d) and module.padding_mode != "zeros":
        return f"pads with {module.padding_mode!r}"
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        usual = module.affine and module.track_running_stats and module.momentum is not None
        return None if usual and type(module) in STACKED else "is no usual batch-norm"
    if type(module) in STACKED or type(module) in PER_SAMPLE:
        return None
    if not any(True for _ in module.children()):
        return "has no stacked form"
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return "has tensors of its own beside its layers" if own else None


def stacked(model: nn.Module, places: Places) -> nn.Module:
    """Returns a copy of a model with stacked layers, without tensors; see `put`.

    Raises:
        BadInput: names a layer without a stacked form.
    """
    check_layers(model)
    made = copied(model, "vectorised: stacks are made")
    for name, module in model.named_modules():
        if type(module) in STACKED:
            made.set_submodule(name, STACKED[type(module)](module, places))
    return made.train()


def put(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Gives the layers of a stacked model their tensors; names are those of the original model's state."""
    for name, module in model.named_modules():
        if isinstance(module, StackedLayer):
            start = f"{name}."
            module.tensors = {
                key.removeprefix(start): t for key, t in tensors.items() if key.rpartition(".")[0] == name
            }
