"""Width-sliced sub-networks of a model: of every layer the first channels, with the model's own weights.

For the length of a pass each convolution, linear layer and batch-norm computes on the leading slice of its own tensors;
nothing is copied, so that gradients reach the whole network's parameters, and those of the kept channels alone. Rules:

- A layer of c channels keeps `kept(width, c)` of them; the model's `head` keeps all its outputs.
- It reads as many inputs as arrive: all channels of an image, the kept ones elsewhere. After a flatten these are the
  first columns, since a channel's positions lie side by side.
- Groups of a convolution follow the channels that arrive: a depthwise one keeps a group for each of them, of a larger
  group that arrives in part the weights of what arrives are used.
- What is added up (residuals) has the same channels on both sides, hence the same kept ones. Concatenations of channels
  would not; no model of the zoo has one.

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

Statistics = Literal["batch", "running"]
"""With which statistics batch-norm normalises in a sub-network: the batch's, or the kept channels' running ones."""


def n_kept(width: float, n: int) -> int:
    """How many of n channels a sub-network of this width has: ceil(width * n), at least one."""
    return max(math.ceil(width * n - 1e-9), 1)  # 0.55 of 20 is 11, whatever floating point makes of it


@contextmanager
def narrowed(model: nn.Module, width: float, statistics: Statistics = "batch") -> Iterator[None]:
    """While it lasts, the model is its own sub-network of this width; running statistics stay as they are.

    Args:
        model: of the zoo; not yet narrowed.
        width: in (0, 1], one for all layers.
        statistics: of batch-norm.

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
    """Whether the model takes a batch of this shape, (batch, channels, height, width): tried on shapes alone.

    A network that flattens takes one size, one that pools to a point takes others too; but where batch-norm is left
    with one value of a channel it cannot train.
    """
    state = dict(chain(model.named_parameters(), model.named_buffers()))
    weightless = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    try:
        with torch.no_grad():
            functional_call(model, weightless, torch.empty(shape, device="meta"))
    except (RuntimeError, ValueError):  # torch's words for shapes that do not fit
        return False
    return True


def _with_state(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that hold parameters or buffers of their own."""
    for name, module in model.named_modules():
        if next(chain(module.parameters(recurse=False), module.buffers(recurse=False)), None) is not None:
            yield name, module


def _forward(
    model: nn.Module, name: str, module: nn.Module, width: float, statistics: Statistics
) -> Callable[[Tensor], Tensor]:
    """What a layer does instead of its own forward."""
    if isinstance(module, nn.Linear):
        n_out = module.out_features if module is model.get_submodule("head") else n_kept(width, module.out_features)
        return partial(_linear, module, n_out)
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        return partial(_convolution, module, n_kept(width, module.out_channels))
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return partial(_batch_norm, module, statistics)
    raise BadInput(f"sub-networks have no {module} ({name})", field="model.name")


def _linear(module: nn.Linear, n_out: int, x: Tensor) -> Tensor:
    return functional.linear(x, module.weight[:n_out, : x.shape[-1]], _first(module.bias, n_out))


def _convolution(module: nn.Conv2d, n_out: int, x: Tensor) -> Tensor:
    there, group = x.shape[1], module.in_channels // module.groups
    if module.groups == 1:
        weight, n_groups = module.weight[:n_out, :there], 1
    else:
        n_groups = -(-there // group)
        weight = module.weight[: n_groups * (module.out_channels // module.groups)]
        if there < n_groups * group:  # the last group is there in part: what is missing counts 0
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
    """The first n elements of what a layer may not have."""
    return None if tensor is None else tensor[:n]
