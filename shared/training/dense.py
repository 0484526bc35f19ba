"""Gradients of dense networks without autograd: the bits of autograd in about half the time of a small step.

A dense network is a chain of linear layers with ReLU between them, trained by the cross-entropy. Its backward pass is
the same operations on the same operands as autograd's, called in the same order; what is saved is the recording of a
graph and the way through modules, which take longer than the products of a small batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shared.training.models.classifier import Classifier

Gradients = tuple[Tensor, Tensor, list[Tensor]]
"""Mean loss of a batch, outputs (batch, n_outputs), and a gradient for each parameter, in the model's order."""
ATEN = torch.ops.aten
_MEAN, _IGNORED = 1, -100
"""As `torch.nn.functional.cross_entropy` passes them: `reduction="mean"`, `ignore_index`."""


def dense_gradients(model: nn.Module) -> Callable[[Tensor, Tensor], Gradients] | None:
    """Returns the gradients of a model by the mean cross-entropy, as a function of a batch; None if it is not dense.

    Dense is a `Classifier` whose features are a flatten and linear layers, each with a bias and followed by ReLU, in
    float32 on the CPU, all of whose parameters are trained, and none of whose modules or parameters has a hook.
    """
    layers = _layers_of(model)
    return None if layers is None else lambda x, y: _gradients(layers, x, y)


def _layers_of(model: nn.Module) -> list[nn.Linear] | None:
    if type(model) is not Classifier or type(model.features) is not nn.Sequential:
        return None
    flatten, *rest = model.features
    linear, relus = [*rest[::2], model.head], rest[1::2]
    layers = [layer for layer in linear if type(layer) is nn.Linear]
    plain = type(flatten) is nn.Flatten and (flatten.start_dim, flatten.end_dim) == (1, -1)
    if not plain or len(layers) < len(linear) or len(relus) != len(rest) // 2 or len(rest) % 2:
        return None
    if any(type(each) is not nn.ReLU for each in relus) or any(_has_hooks(module) for module in model.modules()):
        return None
    parameters = [*model.parameters()]
    usual = all(p.requires_grad and p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters)
    return layers if usual and len(parameters) == 2 * len(layers) else None


def _has_hooks(module: nn.Module) -> bool:
    of_module = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(of_module) or any(p._backward_hooks for p in module.parameters(recurse=False))


def _gradients(layers: list[nn.Linear], x: Tensor, y: Tensor) -> Gradients:
    with torch.no_grad():
        inputs = [x.flatten(1)]
        for layer in layers[:-1]:
            inputs.append(torch.addmm(layer.bias, inputs[-1], layer.weight.t()).relu_())
        outputs = torch.addmm(layers[-1].bias, inputs[-1], layers[-1].weight.t())
        logarithms = torch.log_softmax(outputs, 1)
        loss, weight = ATEN.nll_loss_forward.default(logarithms, y, None, _MEAN, _IGNORED)
        slope = ATEN.nll_loss_backward.default(torch.ones_like(loss), logarithms, y, None, _MEAN, _IGNORED, weight)
        slope = ATEN._log_softmax_backward_data.default(slope, logarithms, 1, torch.float32)
        gradients: list[Tensor] = []
        for number in range(len(layers) - 1, -1, -1):
            gradients += [slope.sum(0), slope.t().mm(inputs[number])]
            if number:
                slope = ATEN.threshold_backward.default(slope.mm(layers[number].weight), inputs[number], 0)
        return loss, outputs, gradients[::-1]
