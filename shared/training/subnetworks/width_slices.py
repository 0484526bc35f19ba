"""Width-sliced sub-networks: the first channels of every layer, with the model's own weights.

During a pass each convolution, linear layer and batch-norm computes on the leading slice of its own tensors. Nothing is
copied, so that gradients reach the whole network's parameters, but only the elements of kept channels. The rules are:

- A layer of c channels keeps `n_kept(width, c)` of them; the model's `head` keeps all its outputs.
- A layer reads as many inputs as it receives: all channels of an image, otherwise the kept channels. After a flatten
  these are the first columns, since a channel's positions are consecutive.
- The groups of a convolution follow the channels received: a depthwise convolution keeps one group for each of them; of
  a larger group that is received in part, the weights of the received channels are used.
- Tensors that are added (residuals) have the same channels and therefore the same kept channels. This would not hold
  for concatenated channels, which no model of the zoo has.

Any other layer with parameters or statistics is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from shared.core.errors import BadInput
from shared.core.randomness import seeded_default_generator
from shared.training.models import head_of

Statistics = Literal["batch", "running"]
"""Statistics with which batch-norm normalises in a sub-network: the batch's, or the running ones of kept channels."""


def n_kept(width: float, n: int) -> int:
    """Returns how many of n channels a sub-network of this width has: ceil(width * n), at least one."""
    return max(math.ceil(width * n - 1e-9), 1)  # 0.28 of 25 is 7 despite rounding errors


@contextmanager
def narrowed(model: nn.Module, width: float, statistics: Statistics = "batch") -> Iterator[None]:
    """Makes the model compute as its sub-network of this width; running statistics do not change.

    Args:
        model: a model of the zoo that is not narrowed already.
        width: share of the channels of every layer, in (0, 1].
        statistics: the statistics that batch-norm uses.

    Raises:
        BadInput: a layer cannot be sliced.
    """
    forwards = {module: _forward(model, name, module, width, statistics) for name, module in _with_state(model)}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward  # found before the method of its class
    try:
        yield
    finally:
        for module in forwards:
            del vars(module)["forward"]


def accepts_shape(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Returns whether the model accepts a batch of this shape, (batch, channels, height, width); nothing changes.

    A network that flattens accepts one image size. A network that pools globally accepts others too, except sizes at
    which batch-norm has only one value per channel and cannot train.

    Computes with at most two samples on the CPU: on torch's `meta` device a batch-norm imports torch's compiler.
    """
    values = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    values |= {name: buffer.detach().cpu().clone() for name, buffer in model.named_buffers()}  # batch-norm writes them
    example = next(iter(values.values()))
    batch = torch.zeros(min(shape[0], 2), *shape[1:], dtype=example.dtype)
    try:
        with torch.no_grad(), seeded_default_generator(0):  # dropout draws from it
            functional_call(model, values, batch)
    except (RuntimeError, ValueError):  # torch's errors for shapes that do not fit
        return False
    return True


def _with_state(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the names and modules that have parameters or buffers of their own."""
    for name, module in model.named_modules():
        if next(chain(module.parameters(recurse=False), module.buffers(recurse=False)), None) is not None:
            yield name, module


def _forward(
    model: nn.Module, name: str, module: nn.Module, width: float, statistics: Statistics
) -> Callable[[Tensor], Tensor]:
    """Returns the function that replaces a layer's forward."""
    if isinstance(module, nn.Linear):
        n_out = module.out_features if module is head_of(model, "sub-networks") else n_kept(width, module.out_features)
        return partial(_linear, module, n_out)
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        return partial(_convolution, module, n_kept(width, module.out_channels))
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return partial(_batch_norm, module, statistics)
    raise BadInput(f"sub-networks are not supported with {module} ({name})", field="model.name")


def _linear(module: nn.Linear, n_out: int, x: Tensor) -> Tensor:
    return functional.linear(x, module.weight[:n_out, : x.shape[-1]], _first(module.bias, n_out))


def _convolution(module: nn.Conv2d, n_out: int, x: Tensor) -> Tensor:
    there, group = x.shape[1], module.in_channels // module.groups
    if module.groups == 1:
        weight, n_groups = module.weight[:n_out, :there], 1
    else:
        n_groups = -(-there // group)
        weight = module.weight[: n_groups * (module.out_channels // module.groups)]
        if there < n_groups * group:  # the last group is received in part: its missing channels are 0
            x = functional.pad(x, (0, 0, 0, 0, 0, n_groups * group - there))
    bias = _first(module.bias, len(weight))
    out = functional.conv2d(x, weight, bias, module.stride, module.padding, module.dilation, n_groups)
    return out[:, :n_out]


def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d, statistics: Statistics, x: Tensor) -> Tensor:
    n = x.shape[1]
    mean, var = _first(module.running_mean, n), _first(module.running_var, n)
    if statistics == "batch":
        mean = var = None
    weight, bias = _first(module.weight, n), _first(module.bias, n)
    return functional.batch_norm(x, mean, var, weight, bias, training=mean is None, eps=module.eps)


def _first(tensor: Tensor | None, n: int) -> Tensor | None:
    """Returns the first n elements of a tensor, None for None."""
    return None if tensor is None else tensor[:n]
