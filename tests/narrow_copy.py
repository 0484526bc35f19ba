"""A sub-network as a separate network: every layer is built smaller and gets copies of the leading weights."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

POOLING = {"mobilenet_v1", "resnet18", "resnet34", "resnet50"}
"""Models with global pooling: they accept images of other sizes."""


def first(width: float, n: int) -> int:
    """Returns ceil(width * n)."""
    return math.ceil(width * n)


def pixels_read(model: nn.Module, x: torch.Tensor) -> dict[str, int]:
    """Returns, by the name of each linear layer, the number of pixels per channel flattened into its input."""
    found, pixels = dict[str, int](), 1

    def note(module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        nonlocal pixels
        if isinstance(module, nn.Flatten):
            pixels = math.prod(inputs[0].shape[2:])
        elif isinstance(module, nn.Linear):
            found[names[module]], pixels = pixels, 1

    observed = copy.deepcopy(model)
    names = {module: name for name, module in observed.named_modules()}
    for module in names:
        module.register_forward_pre_hook(note)
    with torch.no_grad():
        observed(x)
    return found


def narrow_copy(model: nn.Module, width: float, pixels: dict[str, int]) -> nn.Module:
    """Returns the physically smaller network.

    Args:
        model: its first convolution or linear layer reads the image; `head` keeps all its outputs.
        width: the share of channels or neurons kept in every other layer.
        pixels: the result of `pixels_read`.
    """
    small = copy.deepcopy(model)
    reads_image = True
    for name, module in model.named_modules():
        made: Any = None
        if isinstance(module, nn.Conv2d):
            made = _convolution(module, width, whole=reads_image)
            reads_image = False
        elif isinstance(module, nn.Linear):
            n = pixels[name]
            n_in = module.in_features if reads_image else first(width, module.in_features // n) * n
            n_out = module.out_features if name == "head" else first(width, module.out_features)
            made = nn.Linear(n_in, n_out, bias=module.bias is not None)
            reads_image = False
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            made = type(module)(first(width, module.num_features), eps=module.eps)
        if made is not None:
            _fill(made.to(next(module.parameters()).dtype), module)
            parent, _, last = name.rpartition(".")
            setattr(small.get_submodule(parent), last, made.train(module.training))
    return small


def _convolution(module: nn.Conv2d, width: float, *, whole: bool) -> nn.Conv2d:
    n_in = module.in_channels if whole else first(width, module.in_channels)
    n_out = first(width, module.out_channels)
    assert module.groups in (1, module.in_channels)
    return nn.Conv2d(
        n_in,
        n_out,
        module.kernel_size,  # type: ignore[arg-type]
        stride=module.stride,  # type: ignore[arg-type]
        padding=module.padding,  # type: ignore[arg-type]
        groups=n_in if module.groups > 1 else 1,
        bias=module.bias is not None,
    )


def _fill(small: nn.Module, large: nn.Module) -> None:
    """Copy the leading part of every tensor."""
    theirs = large.state_dict()
    with torch.no_grad():
        for name, tensor in small.state_dict().items():
            tensor.copy_(leading(theirs[name], tensor))


def leading(large: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    """Returns the leading part of `large` in the shape of `small`."""
    return large[tuple(slice(n) for n in small.shape)]
