"""Finds the units of a network by tracing its channels from the image to the classes.

A copy of the network runs one forward pass of two empty samples on the CPU; on torch's `meta` device a batch-norm would
import torch's compiler. Hooks on the copy observe its modules, and a torch function mode of this thread observes the
operations between them. `torch.fx` is not used because its tracing patches the modules of all threads, which may be
training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shared.core.errors import BadInput
from shared.training.models import copied, head_of, tied_names
from shared.training.subnetworks.units import Axis, Units, WeightedLayer


def units_of(model: nn.Module, shape: Sequence[int]) -> Units:
    """Returns the units of a network; the model is not changed.

    Args:
        model: a model with a `head`, whose outputs are no units.
        shape: of one sample of numbers; of an image (channels, height, width).

    Raises:
        BadInput: the model has a module or an operation whose effect on units is unknown, no `head`, or tied tensors.
    """
    _check(model)
    read = copied(model, "sub-networks are made").cpu().eval()
    reading = _Reading(read)
    batch = torch.zeros(2, *shape, dtype=next(read.parameters()).dtype)
    reading.note(batch, _Flow())
    with torch.no_grad(), reading:
        outputs = read(batch)
    if reading.flow_of(outputs).group is not None:
        cause = f"sub-networks keep all outputs of `head`, but those of {type(model).__name__} are of another layer"
        raise BadInput(cause, field="model.name")
    return reading.units()


def _check(model: nn.Module) -> None:
    head_of(model, "sub-networks")
    for name, first in tied_names(model).items():
        raise BadInput(f"sub-networks of tied tensors are not defined: {name} is {first}", field="model.name")


@dataclass
class _Flow:
    """The content of a tensor in the forward pass.

    Attributes:
        group: group of its channels, None if they are not units.
        span: number of consecutive positions of a unit.
        layer: index of the convolution or linear layer that produced it, None once anything but a batch-norm and an
            activation has followed.
    """

    group: str | None = None
    span: int = 1
    layer: int | None = None


_ADDED = {"add", "add_", "__add__", "__iadd__", "__radd__"}
_KEEP_CHANNELS = {"relu", "relu_", "max_pool2d", "boolean_dispatch", "avg_pool2d", "adaptive_avg_pool2d", "contiguous"}
_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity, nn.Dropout)


class _Reading(TorchFunctionMode):
    """Traces channels through a network while it is active."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.head = model.get_submodule("head")
        self.n_calls: Counter[str] = Counter()
        self.layers: list[dict[str, Any]] = []
        self.sizes: dict[str, int] = {}
        self.axes: dict[str, list[tuple[int, str, int]]] = {}
        self.same: dict[str, str] = {}  # merged group -> the group it was merged into
        self.flows: dict[int, tuple[Tensor, _Flow]] = {}  # keeps each tensor alive, so that its id stays unique
        self.inside = 0
        for name, module in model.named_modules():
            if next(module.children(), None) is None:
                module.register_forward_pre_hook(self._enters)
                module.register_forward_hook(partial(self._leaves, name))

    def note(self, tensor: Tensor, flow: _Flow) -> None:
        """Records the content of a tensor."""
        self.flows[id(tensor)] = tensor, flow

    def flow_of(self, tensor: Tensor) -> _Flow:
        """Returns the content of a tensor; that of one that nothing is known of has no units."""
        return self.flows.get(id(tensor), (tensor, _Flow()))[1]

    def units(self) -> Units:
        """Returns the units found by the forward pass."""
        axes = {
            name: tuple(Axis(dim, self._root(group), span) for dim, group, span in found)
            for name, found in self.axes.items()
        }
        groups = {name: size for name, size in self.sizes.items() if self._root(name) == name}
        for layer in self.layers:
            layer["group"] = layer["group"] and self._root(layer["group"])
            if self.n_calls[layer["output_module"]] > 1:  # a module shared by several layers
                layer["output_module"] = layer["name"]
        return Units(groups, axes, tuple(WeightedLayer(**layer) for layer in self.layers))

    def _root(self, group: str) -> str:
        while group in self.same:
            group = self.same[group]
        return group

    # ---- tracing

    def _enters(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.inside += 1

    def _leaves(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        self.inside -= 1
        self.n_calls[name] += 1
        self.note(out, self._module(name, module, inputs[0], out))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operation and traces it if it is between two modules."""
        out = func(*args, **(kwargs or {}))
        if not self.inside and isinstance(out, Tensor):
            seen = [self.flows[id(arg)] for arg in args if id(arg) in self.flows]
            if seen:
                self.note(out, self._between(func.__name__, seen))
        return out

    def _between(self, what: str, seen: list[tuple[Tensor, _Flow]]) -> _Flow:
        flows = [flow for _, flow in seen]
        if what in _ADDED and len(flows) == 2:
            return reduce(self._added, flows)
        if what == "flatten":
            return self._flattened(*seen[0])
        if what in _KEEP_CHANNELS:
            return _Flow(flows[0].group, flows[0].span)
        raise BadInput(f"sub-networks are not supported with {what}", field="model.name")

    def _module(self, name: str, module: nn.Module, x: Tensor, out: Tensor) -> _Flow:
        _, flow = self.flows[id(x)]
        if isinstance(module, nn.Conv2d | nn.Linear):
            return self._layer(name, module, flow, out)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.affine:
            for tensor in ("weight", "bias", "running_mean", "running_var"):
                self._follow(f"{name}.{tensor}", 0, flow)
            if flow.layer is not None:
                self.layers[flow.layer]["scale"] = f"{name}.weight"
            return flow
        if isinstance(module, _ACTIVATIONS):
            if flow.layer is not None:
                self.layers[flow.layer]["output_module"] = name
            return flow
        if isinstance(module, nn.Flatten):
            return self._flattened(x, flow)
        if isinstance(module, _POOLS):
            return _Flow(flow.group, flow.span)
        raise BadInput(f"sub-networks are not supported with {module} ({name})", field="model.name")

    def _layer(self, name: str, module: nn.Conv2d | nn.Linear, flow: _Flow, out: Tensor) -> _Flow:
        depthwise = isinstance(module, nn.Conv2d) and module.groups > 1
        if (
            isinstance(module, nn.Conv2d)
            and depthwise
            and not module.groups == module.in_channels == len(module.weight)
        ):
            raise BadInput(f"sub-networks are not supported with {module} ({name})", field="model.name")
        kind = "depthwise" if depthwise else "convolution" if isinstance(module, nn.Conv2d) else "linear"
        if depthwise:
            made = _Flow(flow.group, flow.span)
        else:
            self._follow(f"{name}.weight", 1, flow)
            made = _Flow(None if module is self.head else name)
            if made.group is not None:
                self.sizes[name] = len(module.weight)
        self._follow(f"{name}.weight", 0, made)
        if module.bias is not None:
            self._follow(f"{name}.bias", 0, made)
        n_positions = out.shape[2:].numel()
        first = flow.group is None and not self.layers
        self.layers.append(
            {
                "name": name,
                "kind": kind,
                "n_weights": module.weight.numel(),
                "group": made.group,
                "n_positions": n_positions,
                "first": first,
                "output_module": name,
            }
        )
        return _Flow(made.group, made.span, len(self.layers) - 1)

    def _flattened(self, x: Tensor, flow: _Flow) -> _Flow:
        return _Flow(flow.group, flow.span * x.shape[2:].numel())

    def _added(self, one: _Flow, other: _Flow) -> _Flow:
        """Merges the groups of two tensors that are added: their units are the same."""
        if one.group is None or other.group is None or one.span != other.span:
            raise BadInput("sub-networks are not supported if units are added to other tensors", field="model.name")
        first, second = sorted((self._root(one.group), self._root(other.group)), key=[*self.sizes].index)
        if first != second:
            self.same[second] = first
        return _Flow(first, one.span)

    def _follow(self, name: str, dim: int, flow: _Flow) -> None:
        if flow.group is not None:
            self.axes.setdefault(name, []).append((dim, flow.group, flow.span))
