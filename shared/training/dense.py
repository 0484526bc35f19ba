"""Gradients of dense networks without autograd: the bits of autograd in about half the time of a small step.

A dense network is a chain of linear layers with ReLU between them, trained by the cross-entropy. Its backward pass is
the same operations on the same operands as autograd's, called in the same order; what is saved is the recording of a
graph and the way through modules, which take longer than the products of a small batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shared.training.models.classifier import Classifier
from shared.training.models.parts import parts_of

Gradients = tuple[Tensor, Tensor, list[Tensor]]
"""Mean loss of a batch, outputs (batch, n_outputs), and a gradient for each parameter, in the model's order."""
_ATEN = torch.ops.aten
_NLL, _NLL_BACKWARD = _ATEN.nll_loss_forward.default._op, _ATEN.nll_loss_backward.default._op
_THRESHOLD_BACKWARD = _ATEN.threshold_backward.default._op
_ONE = torch.ones(())
_MEAN, _IGNORED = 1, -100
"""As `torch.nn.functional.cross_entropy` passes them: `reduction="mean"`, `ignore_index`."""


class _Layer(NamedTuple):
    """A linear layer's tensors, which share the memory of its parameters and record nothing for autograd."""

    weight: Tensor
    transposed: Tensor
    bias: Tensor


class _Network(NamedTuple):
    """The modules within a dense network, their parameters, and its linear layers in their order."""

    modules: list[nn.Module]
    parameters: list[nn.Parameter]
    layers: list[_Layer]


def dense_gradients(model: nn.Module) -> Callable[[Tensor, Tensor], Gradients] | None:
    """Returns the gradients of a model by the mean cross-entropy, as a function of a batch; None if it is not dense.

    Dense is a `Classifier` whose features are a flatten and linear layers, each with a bias and followed by ReLU, in
    float32 on the CPU, all of whose parameters are trained, and none of whose modules or parameters has a hook.
    """
    found = parts_of(model).once(_network_of)
    if found is None or any(map(_has_hooks, (model, *found.modules))) or not all(map(_is_usual, found.parameters)):
        return None
    return partial(_gradients, found.layers)


def _network_of(model: nn.Module) -> _Network | None:
    if type(model) is not Classifier or type(model.features) is not nn.Sequential:
        return None
    flatten, *rest = model.features
    linear, relus = [*rest[::2], model.head], rest[1::2]
    layers = [layer for layer in linear if type(layer) is nn.Linear]
    plain = type(flatten) is nn.Flatten and (flatten.start_dim, flatten.end_dim) == (1, -1)
    if not plain or len(layers) < len(linear) or len(relus) != len(rest) // 2 or len(rest) % 2:
        return None
    leaves = [flatten, *rest, model.head]
    if any(type(each) is not nn.ReLU for each in relus) or len(model._modules) > 2 or any(e._modules for e in leaves):
        return None
    modules = [model.features, *leaves]
    parameters = [p for module in (model, *modules) for p in module._parameters.values() if p is not None]
    if len({id(parameter) for parameter in parameters}) != 2 * len(layers):
        return None
    tensors = [(each.weight.detach(), each.bias.detach()) for each in layers]
    return _Network(modules, parameters, [_Layer(weight, weight.t(), bias) for weight, bias in tensors])


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _is_usual(parameter: nn.Parameter) -> bool:
    """Whether a parameter is trained on the CPU in float32 and has no hook."""
    if parameter._backward_hooks:
        return False
    return parameter.requires_grad and parameter.dtype == torch.float32 and parameter.device.type == "cpu"


def _gradients(layers: list[_Layer], x: Tensor, y: Tensor) -> Gradients:
    inputs = [x.flatten(1)]
    for layer in layers[:-1]:
        inputs.append(torch.addmm(layer.bias, inputs[-1], layer.transposed).relu_())
    outputs = torch.addmm(layers[-1].bias, inputs[-1], layers[-1].transposed)
    logarithms = torch.log_softmax(outputs, 1)
    loss, weight = _NLL(logarithms, y, None, _MEAN, _IGNORED)
    slope = _NLL_BACKWARD(_ONE, logarithms, y, None, _MEAN, _IGNORED, weight)
    slope = torch._log_softmax_backward_data(slope, logarithms, 1, torch.float32)
    gradients: list[Tensor] = []
    for number in range(len(layers) - 1, -1, -1):
        gradients += [slope.sum(0), slope.t().mm(inputs[number])]
        if number:
            slope = _THRESHOLD_BACKWARD(slope.mm(layers[number].weight), inputs[number], 0)
    return loss, outputs, gradients[::-1]
