"""Modules of a user: what a run cannot work with is refused by name, and their outputs are taken from structures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shared.core.errors import BadInput
from shared.training.models.classifier import Classifier, own_state, trainable_names
from shared.training.restoring import slots_of

LOGITS = "logits"
"""The name of the outputs in a structure that has several tensors."""


def taken(made: object, name: str) -> nn.Module:
    """Returns a module as runs use it: its outputs are a tensor, whatever structure its forward pass returns.

    Raises:
        BadInput: it is no module, TorchScript, or has a state that cannot be written, sent or put back.
    """
    if not isinstance(made, nn.Module):
        raise BadInput(f"{name} builds a {type(made).__name__}, not a torch module", field="model.name")
    for key, module in made.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"{key} of the model {name}" if key else f"the model {name}"
            raise BadInput(f"{what} is TorchScript: build the module that was scripted or traced", field="model.name")
    for key, value in made.state_dict(keep_vars=True).items():
        if (why := _why_not(value)) is not None:
            raise BadInput(f"{key} of the model {name} {why}", field="model.name")
    dropped = [key for key in trainable_names(made) if key not in own_state(made)]
    if dropped:
        why = "is not in its state under that name: `state_dict` has to hold all parameters that are trained"
        raise BadInput(f"the parameter {dropped[0]} of the model {name} {why}", field="model.name")
    if type(made) is not Classifier:
        made.register_forward_hook(_OutputsOf(name))
    return made


def _why_not(value: Any) -> str | None:
    """Why something cannot be in the state of a model; None if it can."""
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__} in its state: only tensors travel, keep it outside of the state"
    if is_lazy(value):
        return "has no shape before a forward pass: name the sizes in `build`, or pass a batch through it there"
    steps = value.stride() if value.layout == torch.strided else ()
    if any(n > 1 and not step for n, step in zip(value.shape, steps, strict=False)):
        return "has one element at several places, as `expand` makes it: clone it"
    return None


def check_finite(model: nn.Module, name: str) -> None:
    """Checks the initial values of a module.

    Raises:
        BadInput: a tensor of its state holds NaN or infinity, naming it.
    """
    for key, tensor in own_state(model).items():
        if tensor.isfinite().all():
            continue
        if isinstance(tensor, nn.Parameter):
            raise BadInput(f"the parameter {key} of the model {name} begins with NaN or infinity", field="model.name")
        why = "float buffers are averaged: register a constant with `persistent=False`, a mask also as bool"
        raise BadInput(f"the buffer {key} of the model {name} holds NaN or infinity, but {why}", field="model.name")


class _OutputsOf:
    """A hook that replaces a structure by its outputs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: nn.Module, inputs: Any, found: Any) -> Tensor | None:
        """Returns the tensor of outputs, None for a tensor; errors as for `outputs_in`."""
        return None if isinstance(found, Tensor) else outputs_in(found, self.name)[0]


def outputs_in(found: Any, name: str) -> tuple[Tensor, str]:
    """Returns the outputs in what the forward pass of a model returns, and where they stand, such as `.logits`.

    Raises:
        BadInput: there is none, or several among which none is called `logits`.
    """
    part, place = found, ""
    while not isinstance(part, Tensor):
        step = _step_into(part)
        if step is None:
            raise _without_outputs(part, found, name)
        part, place = step[0], place + step[1]
    return part, place


def _step_into(part: Any) -> tuple[Any, str] | None:
    """Returns the part of a structure in which the outputs are, and how it is reached."""
    by_key = isinstance(part, Mapping)
    named = part if by_key else _attributes(part)
    tensors = [key for key, value in named.items() if isinstance(value, Tensor)]
    if LOGITS in tensors:
        key = LOGITS
    elif isinstance(part, tuple | list) and part:
        return part[0], "[0]"
    elif len(tensors) == 1:
        key = tensors[0]
    else:
        return None
    return named[key], f"[{key!r}]" if by_key else f".{key}"


def _without_outputs(part: Any, whole: Any, name: str) -> BadInput:
    named = part if isinstance(part, Mapping) else _attributes(part)
    parts = f" of {', '.join(map(str, named))}" if named else ""
    what = f"the model {name} returns a {type(whole).__name__}{parts}"
    several = any(isinstance(value, Tensor) for value in named.values())
    which = f"several tensors, none of them called `{LOGITS}`" if several else "no tensor of outputs"
    return BadInput(f"{what:.300}: {which}", field="model.name")


def _attributes(part: Any) -> dict[str, Any]:
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return dict(zip(part._fields, part, strict=True))
    slots = {name: getattr(part, name) for name in slots_of(type(part)) if hasattr(part, name)}
    return slots | dict(getattr(part, "__dict__", {}))
