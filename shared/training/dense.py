"""Gradients of dense networks without autograd: the bits of autograd in about half the time of a small step.

A dense network is a chain of linear layers with ReLU between them, trained by the cross-entropy. Its backward pass is
the same operations on the same operands as autograd's, called in the same order; what is saved is the recording of a
graph and the way through modules, which take longer than the products of a small batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shared.training.models.classifier import Classifier

Gradients = tuple[Tensor, Tensor, list[Tensor]]
"""Mean loss of a batch, outputs (batch, n_outputs), and a gradient for each parameter, in the model's order."""
ATEN = torch.ops.aten
_MEAN, _IGNORED = 1, -100
"""As `torch.nn.functional.cross_entropy` passes them: `reduction="mean"`, `ignore_index`."""


class _Layer(NamedTuple):
    """A linear layer's tensors, which share the memory of its parameters and record nothing for autograd."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor


def dense_gradients(model: nn.Module) -> Callable[[Tensor, Tensor], Gradients] | None:
    """Returns the gradients of a model by the mean cross-entropy, as a function of a batch; None if it is not dense.

    Dense is a `Classifier` whose features are a flatten and linear layers, each with a bias and followed by ReLU, in
    float32 on the CPU, all of whose parameters are trained, and none of whose modules or parameters has a hook.
    """
    found = _layers_of(model)
    if found is None:
        return None
    layers = [_Layer(each.weight.detach(), each.weight.detach().t(), each.bias.detach()) for each in found]
    return lambda x, y: _gradients(layers, x, y)


def _layers_of(model: nn.Module) -> list[nn.Linear] | None:
    if type(model) is not Classifier or type(model.features) is not nn.Sequential:
        return None
    flatten, *rest = model.features
    linear, relus = [*rest[::2], model.head], rest[1::2]
    layers = [layer for layer in linear if type(layer) is nn.Linear]
    plain = type(flatten) is nn.Flatten and (flatten.start_dim, flatten.end_dim) == (1, -1)
    if not plain or len(layers) < len(linear) or len(relus) != len(rest) // 2 or len(rest) % 2:
        return None
    if any(type(each) is not nn.ReLU for each in relus) or len(model._modules) > 2:
        return None
    leaves = (flatten, *rest, model.head)
    if any(each._modules for each in leaves) or any(map(_has_hooks, (model, model.features, *leaves))):
        return None
    parameters = [p for module in (model, model.features, *leaves) for p in module._parameters.values()]
    apart = len({id(parameter) for parameter in parameters}) == 2 * len(layers)
    return layers if apart and all(map(_is_usual, parameters)) else None


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _is_usual(parameter: nn.Parameter | None) -> bool:
    """Whether a parameter is there, is trained on the CPU in float32 and has no hook."""
    if parameter is None or parameter._backward_hooks:
        return False
    return parameter.requires_grad and parameter.dtype == torch.float32 and parameter.device.type == "cpu"


def _gradients(layers: list[_Layer], x: Tensor, y: Tensor) -> Gradients:
    inputs = [x.flatten(1)]
    for layer in layers[:-1]:
        inputs.append(torch.addmm(layer.bias, inputs[-1], layer.transposed).relu_())
    outputs = torch.addmm(layers[-1].bias, inputs[-1], layers[-1].transposed)
    logarithms = torch.log_softmax(outputs, 1)
    loss, weight = ATEN.nll_loss_forward.default(logarithms, y, None, _MEAN, _IGNORED)
    slope = ATEN.nll_loss_backward.default(torch.ones_like(loss), logarithms, y, None, _MEAN, _IGNORED, weight)
    slope = torch._log_softmax_backward_data(slope, logarithms, 1, torch.float32)
    gradients: list[Tensor] = []
    for number in range(len(layers) - 1, -1, -1):
        gradients += [slope.sum(0), slope.t().mm(inputs[number])]
        if number:
            slope = ATEN.threshold_backward.default(slope.mm(layers[number].weight), inputs[number], 0)
    return loss, outputs, gradients[::-1]
