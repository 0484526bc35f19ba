"""Which units a network consists of, and sub-networks that keep some of them, physically smaller.

A *group* is a set of units that can be kept or left out: the channels of a convolution, the neurons of a linear layer.
What is added up (residuals) is one group, a depthwise convolution has the group of what it reads. Image channels and
classes are no units. Every tensor of a model's state follows groups along its dimensions; behind a flatten a unit has
several positions side by side. All of that is read off the network itself (`unit_graph.py`), so that a sub-network
needs no definition of its own: it is the same network with smaller tensors.

    units_of(model) --cut-->   the state of a sub-network --resized--> its model
                    <--spread-- and where each of its elements belongs
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
class WeightedLayer:
    """A convolution or linear layer.

    Attributes:
        name: of the module; its weights are `<name>.weight`.
        kind: what it is.
        group: of its outputs, None where these are no units (the last layer).
        n_positions: pixels of its output, 1 for a linear layer.
        first: whether it reads the image.
        scale: name of the parameters that scale its outputs in the batch-norm behind it, if there is one.
        output_module: name of the module whose output measures its units: the activation behind it, if there is one.
    """

    name: str
    kind: Kind
    group: str | None
    n_positions: int
    first: bool = False
    scale: str | None = None
    output_module: str = ""


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
    layers: tuple[WeightedLayer, ...]

    def makers(self, group: str) -> list[WeightedLayer]:
        """The layers whose outputs are a group's units; a depthwise convolution makes none of its own."""
        return [layer for layer in self.layers if layer.group == group and layer.kind != "depthwise"]

    def cut(self, state: Mapping[str, Tensor], kept: Kept) -> dict[str, Tensor]:
        """The state of the sub-network that keeps these units; groups that are not named are kept whole."""
        return {name: self._part(name, tensor, kept).clone() for name, tensor in state.items()}

    def _part(self, name: str, tensor: Tensor, kept: Kept) -> Tensor:
        for axis in self.axes.get(name, ()):
            if axis.group in kept:
                tensor = tensor.index_select(axis.dim, axis.positions(kept[axis.group]).to(tensor.device))
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
                positions = axis.positions(kept[axis.group]).to(part.device)
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

    def n_weights(self, state: Mapping[str, Tensor]) -> dict[str, int]:
        """By layer, its weights in the network of this state; biases and batch-norm are not counted."""
        return {layer.name: state[f"{layer.name}.weight"].numel() for layer in self.layers}

    def multiply_adds(self, state: Mapping[str, Tensor]) -> dict[str, int]:
        """By layer, multiply-adds of passing one sample through the network of this state."""
        return {
            layer.name: n * layer.n_positions
            for layer, n in zip(self.layers, self.n_weights(state).values(), strict=True)
        }

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
        free = {axis.dim for axis in units.axes.get(name, ())}
        if [n for d, n in enumerate(tensor.shape) if d not in free] != [
            n for d, n in enumerate(state[name].shape) if d not in free
        ]:
            raise BadInput(f"{name} is {tuple(state[name].shape)}, the model's is {tuple(tensor.shape)}")
        own = state[name].detach().to(tensor.device, copy=True, memory_format=torch.contiguous_format)
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
