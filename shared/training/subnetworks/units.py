"""The units of a network, and physically smaller sub-networks that keep some of the units.

A *group* is a set of units, each of which can be kept or pruned: the channels of a convolution, or the neurons of a
linear layer. Outputs that are added (residuals) are one group; a depthwise convolution has the group of its input.
Image channels and classes are not units. The dimensions of every tensor of a model's state follow groups; after a
flatten a unit has several consecutive positions. All of this is found by tracing the network (`unit_graph.py`), so that
a sub-network needs no definition of its own: it is the same network with smaller tensors.

    state of the network --cut--> state of a sub-network --resized--> model of the sub-network
                         <--spread--
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shared.core.errors import BadInput

Kept = Mapping[str, Tensor]
"""The units that a sub-network keeps, by group: int64, ascending."""
Kind = Literal["convolution", "depthwise", "linear"]


@dataclass(frozen=True)
class Axis:
    """A dimension of a tensor that follows a group; each unit has `span` consecutive positions in it."""

    dim: int
    group: str
    span: int = 1

    def positions(self, units: Tensor) -> Tensor:
        """Returns the positions of these units along the dimension."""
        return (units[:, None] * self.span + torch.arange(self.span)).flatten()


@dataclass(frozen=True)
class WeightedLayer:
    """A convolution or linear layer.

    Attributes:
        name: name of the module; its weights are `<name>.weight`.
        kind: kind of the layer.
        n_weights: number of its weights in the whole network.
        group: group of its outputs, None if they are not units (the last layer).
        n_positions: number of pixels of its output, 1 for a linear layer.
        first: whether its input is the image.
        scale: name of the scale parameters of the batch-norm that follows it, None without batch-norm.
        output_module: name of the module whose output measures its units: the activation that follows it, else itself.
    """

    name: str
    kind: Kind
    n_weights: int
    group: str | None
    n_positions: int
    first: bool = False
    scale: str | None = None
    output_module: str = ""


@dataclass(frozen=True)
class Units:
    """The units of a network.

    Attributes:
        groups: number of units of each group; a group has the name of the first layer that produces it.
        axes: by name of a tensor of the state, the dimensions that follow groups; other tensors are never cut.
        layers: convolutions and linear layers, from input to output.
    """

    groups: Mapping[str, int]
    axes: Mapping[str, tuple[Axis, ...]]
    layers: tuple[WeightedLayer, ...]

    def makers(self, group: str) -> list[WeightedLayer]:
        """Returns the layers whose outputs are a group's units; depthwise convolutions produce no new units."""
        return [layer for layer in self.layers if layer.group == group and layer.kind != "depthwise"]

    def cut(self, state: Mapping[str, Tensor], kept: Kept) -> dict[str, Tensor]:
        """Returns the state of the sub-network that keeps these units; groups that are not named are kept whole."""
        return {name: self._part(name, tensor, kept).clone() for name, tensor in state.items()}

    def _part(self, name: str, tensor: Tensor, kept: Kept) -> Tensor:
        for axis in self.axes.get(name, ()):
            if axis.group in kept:
                tensor = tensor.index_select(axis.dim, axis.positions(kept[axis.group]).to(tensor.device))
        return tensor

    def spread(self, part: Mapping[str, Tensor], like: Mapping[str, Tensor], kept: Kept) -> dict[str, Tensor]:
        """Returns tensors of the network's shapes with a sub-network's elements at their positions, and 0 elsewhere.

        Args:
            part: tensors of the sub-network's shapes.
            like: the network's state, of which only the shapes are used.
            kept: the units that the sub-network keeps.
        """
        return {name: self._whole(name, tensor, like[name].shape, kept) for name, tensor in part.items()}

    def _whole(self, name: str, part: Tensor, shape: torch.Size, kept: Kept) -> Tensor:
        for axis in self.axes.get(name, ()):
            if axis.group in kept:
                wider = [*part.shape]
                wider[axis.dim] = shape[axis.dim]
                positions = axis.positions(kept[axis.group]).to(part.device)
                part = part.new_zeros(wider).index_copy_(axis.dim, positions, part)
        return part.clone()

    def sizes(self, state: Mapping[str, Tensor]) -> dict[str, int]:
        """Returns the number of units of each group in a sub-network's state.

        Raises:
            BadInput: no sub-network has these shapes.
        """
        found: dict[str, int] = {}
        for name, axes in self.axes.items():
            for axis in axes:
                n, rest = divmod(state[name].shape[axis.dim], axis.span)
                if rest or n == 0 or n > self.groups[axis.group] or found.setdefault(axis.group, n) != n:
                    shape = tuple(state[name].shape)
                    raise BadInput(f"{name} is {shape}: no sub-network has this shape with the other tensors' shapes")
        return found

    def n_weights(self, state: Mapping[str, Tensor]) -> dict[str, int]:
        """Returns the number of weights of each layer in this state; biases and batch-norm are not counted."""
        return {layer.name: state[f"{layer.name}.weight"].numel() for layer in self.layers}

    def multiply_adds(self, state: Mapping[str, Tensor]) -> dict[str, int]:
        """Returns the multiply-adds of each layer in a forward pass of one sample, for the network of this state."""
        return {
            layer.name: n * layer.n_positions
            for layer, n in zip(self.layers, self.n_weights(state).values(), strict=True)
        }

    def training_flops(self, state: Mapping[str, Tensor]) -> int:
        """Returns the floating-point operations of training the network of this state on one sample.

        A layer has a forward pass, a backward pass to its weights and, unless its input is the image, one to its input.
        `shared.training.flops.training_flops` returns the same number except for depthwise convolutions, whose backward
        pass torch counts as if each channel read all channels; do not compare the two counts for such networks.
        """
        passes = {layer.name: 2 if layer.first else 3 for layer in self.layers}
        return sum(2 * passes[name] * n for name, n in self.multiply_adds(state).items())


def resized(model: nn.Module, units: Units, state: Mapping[str, Tensor]) -> nn.Module:
    """Returns the sub-network of this state as a dense, smaller model with copies of these tensors.

    Raises:
        BadInput: no sub-network has these shapes.
    """
    units.sizes(state)
    memo: dict[int, Any] = {}
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if name not in state:  # a buffer that is not saved
            continue
        free = {axis.dim for axis in units.axes.get(name, ())}
        if [n for d, n in enumerate(tensor.shape) if d not in free] != [
            n for d, n in enumerate(state[name].shape) if d not in free
        ]:
            raise BadInput(f"{name} is {tuple(state[name].shape)}, the model's is {tuple(tensor.shape)}")
        own = state[name].detach().to(tensor.device, copy=True, memory_format=torch.contiguous_format)
        memo[id(tensor)] = nn.Parameter(own, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else own
    small = copy.deepcopy(model, memo)  # uses the smaller tensors instead of the model's
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
