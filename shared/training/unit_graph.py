"""Reading the units of a network off its graph, as `torch.fx` gives it."""

from __future__ import annotations

import copy
import operator
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from shared.errors import BadInput
from shared.training.units import Axis, Units, Weighted


def units_of(model: nn.Module, input_shape: tuple[int, int, int]) -> Units:
    """Read a model's graph; no image passes through it.

    Args:
        model: with a `head`, whose outputs are the classes.
        input_shape: (channels, height, width).

    Raises:
        BadInput: the model does something of which it is not known what it does to units.
    """
    return _Reading(model, input_shape).units()


@dataclass
class _Flow:
    """What flows along an edge of the graph.

    Attributes:
        group: whose units its channels are, None: of no group.
        span: positions of a unit side by side.
        layer: position of the convolution or linear layer behind it, while nothing but a batch-norm and an activation
            came after that.
    """

    group: str | None = None
    span: int = 1
    layer: int | None = None


_ADDED = {operator.add, operator.iadd, torch.add, "add", "add_"}
_FLATTENED = {torch.flatten, "flatten"}
_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity, nn.Dropout)
_KEEP_CHANNELS = {torch.relu, functional.relu, functional.max_pool2d, functional.avg_pool2d, "relu", "contiguous"}
_KEEP_CHANNELS |= {functional.adaptive_avg_pool2d}


class _Reading:
    """Follows channels through a model's graph."""

    def __init__(self, model: nn.Module, input_shape: tuple[int, int, int]) -> None:
        self.head = model.get_submodule("head")
        self.modules = dict(model.named_modules())
        self.graph = _graph(model, input_shape)
        self.n_calls = Counter(str(node.target) for node in self.graph.nodes if node.op == "call_module")
        self.layers: list[dict[str, Any]] = []
        self.sizes: dict[str, int] = {}
        self.axes: dict[str, list[tuple[int, str, int]]] = {}
        self.same: dict[str, str] = {}  # a group that turned out to be another

    def units(self) -> Units:
        flows: dict[fx.Node, _Flow] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                flows[node] = _Flow()
            elif node.op != "output":
                flows[node] = self._through(node, [flows[arg] for arg in node.all_input_nodes])
        axes = {
            name: tuple(Axis(dim, self._root(group), span) for dim, group, span in found)
            for name, found in self.axes.items()
        }
        groups = {name: size for name, size in self.sizes.items() if self._root(name) == name}
        made = [{**layer, "group": layer["group"] and self._root(layer["group"])} for layer in self.layers]
        return Units(groups, axes, tuple(Weighted(**layer) for layer in made))

    def _root(self, group: str) -> str:
        while group in self.same:
            group = self.same[group]
        return group

    def _through(self, node: fx.Node, flows: list[_Flow]) -> _Flow:
        """What comes out of a node into which these flow."""
        if node.op == "call_module":
            name = str(node.target)
            return self._module(node, name, self.modules[name], flows[0])
        if node.target in _ADDED and len(flows) == 2:
            return reduce(self._added, flows)
        if node.target in _FLATTENED:
            return self._flattened(node, flows[0])
        if node.target in _KEEP_CHANNELS:
            return _Flow(flows[0].group, flows[0].span)
        raise BadInput(f"sub-networks are not known of {node.target}", field="model.name")

    def _module(self, node: fx.Node, name: str, module: nn.Module, flow: _Flow) -> _Flow:
        if isinstance(module, nn.Conv2d | nn.Linear):
            return self._layer(node, name, module, flow)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.affine:
            for tensor in ("weight", "bias", "running_mean", "running_var"):
                self._follow(f"{name}.{tensor}", 0, flow)
            if flow.layer is not None:
                self.layers[flow.layer]["scale"] = f"{name}.weight"
            return flow
        if isinstance(module, _ACTIVATIONS):
            if flow.layer is not None and self.n_calls[name] == 1:  # else its outputs are others' too
                self.layers[flow.layer]["shown"] = name
            return flow
        if isinstance(module, nn.Flatten):
            return self._flattened(node, flow)
        if isinstance(module, _POOLS):
            return _Flow(flow.group, flow.span)
        raise BadInput(f"sub-networks are not known of {module} ({name})", field="model.name")

    def _layer(self, node: fx.Node, name: str, module: nn.Conv2d | nn.Linear, flow: _Flow) -> _Flow:
        depthwise = isinstance(module, nn.Conv2d) and module.groups > 1
        if (
            isinstance(module, nn.Conv2d)
            and depthwise
            and not module.groups == module.in_channels == len(module.weight)
        ):
            raise BadInput(f"sub-networks are not known of {module} ({name})", field="model.name")
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
        n_positions = _pixels(node) if isinstance(module, nn.Conv2d) else 1
        first = flow.group is None and not self.layers
        self.layers.append(
            {"name": name, "kind": kind, "group": made.group, "n_positions": n_positions, "first": first, "shown": name}
        )
        return _Flow(made.group, made.span, len(self.layers) - 1)

    def _flattened(self, node: fx.Node, flow: _Flow) -> _Flow:
        return _Flow(flow.group, flow.span * _pixels(node.all_input_nodes[0]))

    def _added(self, one: _Flow, other: _Flow) -> _Flow:
        """Units that are added up are the same ones."""
        if one.group is None or other.group is None or one.span != other.span:
            raise BadInput("sub-networks are not known where units are added to other things", field="model.name")
        first, second = sorted((self._root(one.group), self._root(other.group)), key=[*self.sizes].index)
        if first != second:
            self.same[second] = first
        return _Flow(first, one.span)

    def _follow(self, name: str, dim: int, flow: _Flow) -> None:
        if flow.group is not None:
            self.axes.setdefault(name, []).append((dim, flow.group, flow.span))


def _graph(model: nn.Module, input_shape: tuple[int, int, int]) -> fx.Graph:
    """The model's graph, whose nodes know the pixels of what they give; computed on shapes alone.

    Raises:
        BadInput: it has none, since what it does depends on what it sees.
    """
    memo: dict[int, Any] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        shape = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(shape) if isinstance(tensor, nn.Parameter) else shape
    weightless = copy.deepcopy(model, memo).eval()
    try:
        traced = fx.symbolic_trace(weightless)
    except fx.proxy.TraceError as error:
        raise BadInput(f"sub-networks are not known of this model: {error}", field="model.name") from None
    _Pixels(traced).run(torch.empty(2, *input_shape, device="meta"))
    return traced.graph


class _Pixels(fx.Interpreter):
    """Notes at each node of how many pixels the channels are that it gives."""

    def run_node(self, n: fx.Node) -> Any:
        out = super().run_node(n)
        if isinstance(out, Tensor):
            n.meta["pixels"] = out.shape[2:].numel()
        return out


def _pixels(node: fx.Node) -> int:
    return int(node.meta["pixels"])
