"""Which units a network consists of, and sub-networks that keep some of them, physically smaller.

A *group* is a set of units that can be kept or left out: the channels of a convolution, the neurons of a linear layer.
What is added up (residuals) is one group, a depthwise convolution has the group of what it reads. Image channels and
classes are no units. Every tensor of a model's state follows groups along its dimensions; behind a flatten a unit has
several positions side by side. All of that is read off the network's own graph (`torch.fx`), so that a sub-network
needs no definition of its own: it is the same network with smaller tensors.

    Units.of(model) --cut--> the state of a sub-network --resized--> its model
                    <-spread- and where each of its elements belongs
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from shared.errors import BadInput

Kept = Mapping[str, Tensor]
"""By group, the units that a sub-network keeps, int64, ascending."""
Kind = Literal["convolution", "depthwise", "linear"]


@dataclass(frozen=True)
class Axis:
    """A dimension of a tensor that follows a group; each unit has `span` positions in it, side by side."""

    dim: int
    group: str
    span: int = 1

    def positions(self, units: Tensor) -> Tensor:
        """Where these units are."""
        return (units[:, None] * self.span + torch.arange(self.span)).flatten()


@dataclass(frozen=True)
class Weighted:
    """A convolution or linear layer.

    Attributes:
        name: of the module; its weights are `<name>.weight`.
        kind: what it is.
        group: of its outputs, None where these are no units (the last layer).
        n_positions: pixels of its output, 1 for a linear layer.
        first: whether it reads the image.
        scale: name of the parameters that scale its outputs in the batch-norm behind it, if there is one.
        shown: name of the module whose output shows what its units do: of the activation behind it, if there is one.
    """

    name: str
    kind: Kind
    group: str | None
    n_positions: int
    first: bool = False
    scale: str | None = None
    shown: str = ""


@dataclass(frozen=True)
class Units:
    """The units of a network.

    Attributes:
        groups: by name, which is that of the first layer that makes them, how many units.
        axes: by name of a tensor of the state, the groups that it follows; others are kept whole.
        layers: convolutions and linear layers, from input to output.
    """

    groups: Mapping[str, int]
    axes: Mapping[str, tuple[Axis, ...]]
    layers: tuple[Weighted, ...]

    @staticmethod
    def of(model: nn.Module, input_shape: tuple[int, int, int]) -> Units:
        """Read a model's graph; no image passes through it.

        Args:
            model: with a `head`, whose outputs are the classes.
            input_shape: (channels, height, width).

        Raises:
            BadInput: the model does something of which it is not known what it does to units.
        """
        return _Reading(model, input_shape).units()

    def makers(self, group: str) -> list[Weighted]:
        """The layers whose outputs are a group's units; a depthwise convolution makes none of its own."""
        return [layer for layer in self.layers if layer.group == group and layer.kind != "depthwise"]

    def cut(self, state: Mapping[str, Tensor], kept: Kept) -> dict[str, Tensor]:
        """The state of the sub-network that keeps these units; groups that are not named are kept whole."""
        return {name: self._part(name, tensor, kept).clone() for name, tensor in state.items()}

    def _part(self, name: str, tensor: Tensor, kept: Kept) -> Tensor:
        for axis in self.axes.get(name, ()):
            if axis.group in kept:
                tensor = tensor.index_select(axis.dim, axis.positions(kept[axis.group]))
        return tensor

    def spread(self, part: Mapping[str, Tensor], like: Mapping[str, Tensor], kept: Kept) -> dict[str, Tensor]:
        """The tensors of a sub-network at their places in the whole one's, 0 elsewhere.

        Args:
            part: tensors of the sub-network's shapes.
            like: the network's state; only its shapes count.
            kept: the units that the sub-network keeps.
        """
        return {name: self._whole(name, tensor, like[name].shape, kept) for name, tensor in part.items()}

    def _whole(self, name: str, part: Tensor, shape: torch.Size, kept: Kept) -> Tensor:
        for axis in self.axes.get(name, ()):
            if axis.group in kept:
                wider = [*part.shape]
                wider[axis.dim] = shape[axis.dim]
                positions = axis.positions(kept[axis.group])
                part = part.new_zeros(wider).index_copy_(axis.dim, positions, part)
        return part.clone()

    def sizes(self, state: Mapping[str, Tensor]) -> dict[str, int]:
        """By group, how many units a sub-network of this state has.

        Raises:
            BadInput: no sub-network has these shapes.
        """
        found: dict[str, int] = {}
        for name, axes in self.axes.items():
            for axis in axes:
                n, rest = divmod(state[name].shape[axis.dim], axis.span)
                if rest or n == 0 or n > self.groups[axis.group] or found.setdefault(axis.group, n) != n:
                    raise BadInput(f"{name} is {tuple(state[name].shape)}: no sub-network has that beside the others")
        return found

    def multiply_adds(self, state: Mapping[str, Tensor]) -> dict[str, int]:
        """By layer, multiply-adds of passing one sample through the network of this state."""
        return {layer.name: state[f"{layer.name}.weight"].numel() * layer.n_positions for layer in self.layers}

    def training_flops(self, state: Mapping[str, Tensor]) -> int:
        """Operations of training the network of this state on one sample.

        A pass forward, one back to the weights, and one to the inputs where these are no images. `training_flops` of
        `shared.training.flops` says the same but for depthwise convolutions, whose way back torch counts as if each
        channel read all of them: compare counts of one kind.
        """
        passes = {layer.name: 2 if layer.first else 3 for layer in self.layers}
        return sum(2 * passes[name] * n for name, n in self.multiply_adds(state).items())


def resized(model: nn.Module, units: Units, state: Mapping[str, Tensor]) -> nn.Module:
    """A model's sub-network of this state, as a network of its own: dense, smaller, with copies of these tensors.

    Raises:
        BadInput: no sub-network has these shapes.
    """
    units.sizes(state)
    memo: dict[int, Any] = {}
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        own = state[name].detach().clone(memory_format=torch.contiguous_format)
        memo[id(tensor)] = nn.Parameter(own) if isinstance(tensor, nn.Parameter) else own
    small = copy.deepcopy(model, memo)  # takes the smaller tensors in the place of the model's
    for module in small.modules():
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        elif isinstance(module, nn.Conv2d):
            depthwise = module.groups > 1
            module.out_channels = module.weight.shape[0]
            module.in_channels = module.out_channels if depthwise else module.weight.shape[1]
            module.groups = module.out_channels if depthwise else 1
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.num_features = len(module.weight)
    return small


# ---- reading a graph


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
            if flow.layer is not None:
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
