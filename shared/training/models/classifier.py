"""The base class of all models, their layers, and reading and writing their states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from shared.core.errors import BadInput
from shared.training.models.parts import parts_of

Shape = tuple[int, int, int]
"""Shape of an image: (channels, height, width)."""


class Classifier(nn.Module):
    """A feature extractor with a linear head; its outputs are logits, or numbers."""

    def __init__(self, features: nn.Module, n_features: int, n_outputs: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(n_features, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the outputs, (batch, n_outputs), of sequences (batch, length, n_outputs)."""
        outputs: Tensor = self.head(self.features(x))
        return outputs


def features_of(model: nn.Module, who: str) -> Classifier:
    """Returns a model that tells its features and its last layer, as every `Classifier` does.

    Args:
        model: any model.
        who: what needs the features, for the message.

    Raises:
        BadInput: the model lacks one of the attributes; the message names it.
    """
    for name, what in (("features", "a module from samples to features"), ("head", "the linear layer after them")):
        if not isinstance(getattr(model, name, None), nn.Module):
            cause = f"{who} needs the attribute `{name}` of the model, {what}; {type(model).__name__} has none"
            raise BadInput(cause, field="model.name")
    return cast("Classifier", model)


def head_of(model: nn.Module, who: str) -> nn.Module:
    """Returns the last layer of a model, its attribute `head`.

    Raises:
        BadInput: there is none, or it is more than one layer.
    """
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear | nn.Conv2d):
        has = "has none" if head is None else f"has a {type(head).__name__} there"
        cause = f"{who} need the attribute `head` of the model, its last layer; {type(model).__name__} {has}"
        raise BadInput(cause, field="model.name")
    return head


@dataclass(frozen=True)
class Layer:
    """A layer with parameters: a convolution or linear module and the normalisation that follows it.

    Attributes:
        name: name of the convolution or linear module.
        parameters: names of its parameters in the model's state, with those of its normalisation.
        buffers: names of its buffers (running statistics).
        tied: its names of tensors that are in the state under the name of another layer, with that name.
    """

    name: str
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict, hash=False)


def parameter_names(model: nn.Module) -> list[str]:
    """Returns the names of a model's parameters, in the model's order."""
    return [name for name, _ in model.named_parameters()]


def trainable_names(model: nn.Module) -> list[str]:
    """Returns the names of the parameters that training changes, in the model's order; the others are frozen."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def buffer_names(model: nn.Module) -> list[str]:
    """Returns the names of the buffers in a model's state (batch-norm statistics), in the model's order."""
    kept = own_state(model).keys() - set(parameter_names(model))
    return [name for name, _ in model.named_buffers() if name in kept]


def norm_names(model: nn.Module) -> frozenset[str]:
    """Returns the names of the parameters of batch-norm: torch's modules, and others that track a running mean."""
    found: set[str] = set()
    for name, module in model.named_modules():
        tracks = module._buffers.get("running_mean") is not None
        if tracks or isinstance(module, nn.modules.batchnorm._BatchNorm):
            found |= {*_own_names(name, (each for each, _ in module.named_parameters(recurse=False)), own_state(model))}
    return frozenset(found)


def layers(model: nn.Module, order: Sequence[str] | None = None) -> list[Layer]:
    """Returns the layers with parameters; batch-norm is part of the layer before it.

    They are in the given order of their modules, else in that in which the model registers them.

    A tied tensor belongs to the layer that registers it first.
    """
    found, kept, firsts = list[Layer](), own_state(model).keys(), tied_names(model)
    for module_name in [name for name, _ in model.named_modules()] if order is None else order:
        module = model.get_submodule(module_name)
        parameters = _own_names(module_name, (name for name, _ in module.named_parameters(recurse=False)), kept)
        buffers = _own_names(module_name, (name for name, _ in module.named_buffers(recurse=False)), kept)
        further = _own_names(module_name, module._parameters, firsts)
        layer = Layer(module_name, parameters, buffers, {name: firsts[name] for name in further})
        if found and isinstance(module, nn.modules.batchnorm._NormBase):
            last = found.pop()
            layer = Layer(last.name, last.parameters + parameters, last.buffers + buffers, {**last.tied, **layer.tied})
        if parameters or buffers or further:
            found.append(layer)
    return found


def _own_names(module_name: str, names: Iterable[str], kept: Collection[str]) -> tuple[str, ...]:
    full = (f"{module_name}.{name}" if module_name else name for name in names)
    return tuple(name for name in full if name in kept)


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns a model's parameters and buffers by name; a tied tensor once, by the first of its names."""
    return dict(parts_of(model).state)


def tied_names(model: nn.Module) -> dict[str, str]:
    """Returns the further names of tied tensors, each with the first name, by which the tensor is in the state."""
    found: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    firsts = {name: found.setdefault(id(tensor), name) for name, tensor in state.items()}
    return {name: first for name, first in firsts.items() if name != first}


def read_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns copies of all parameters and buffers by name, contiguous whatever the model's memory format."""
    own = parts_of(model).state
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in own.items()}


def write_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copies all parameters and buffers into the model's own memory.

    The model never uses the tensors themselves: a tensor decoded from a message body is a view with another alignment,
    which changes bits.

    Raises:
        BadInput: a name is missing or unknown, or a shape or dtype differs; nothing is written then.
    """
    own = parts_of(model).state
    if own.keys() != state.keys():
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        raise BadInput(f"the state does not fit the model: missing {missing}, unknown {unknown}")
    for name, tensor in state.items():
        if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
            raise BadInput(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)}, the model's is "
                f"{own[name].dtype} {tuple(own[name].shape)}"
            )
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)


def initialise(convolution: nn.Conv2d) -> None:
    """Draws the weights of a convolution before a batch-norm, as He et al. (ICCV 2015) do, by its outputs.

    A tensor of torch's `meta` device has no values to draw; there torch would import its compiler, 40 MB.
    """
    if not convolution.weight.is_meta:
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
