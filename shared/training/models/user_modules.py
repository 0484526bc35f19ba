"""Modules of a user: what a run cannot work with is refused by name, and their outputs are taken from structures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shared.core.errors import BadInput
from shared.training.models.classifier import Classifier

LOGITS = "logits"
"""The name of the outputs in a structure that has several tensors."""


def taken(made: object, name: str) -> nn.Module:
    """Returns a module as runs use it: its outputs are a tensor, whatever structure its forward pass returns.

    Raises:
        BadInput: it is no module, it has tensors whose shapes only a forward pass decides, or a state beside tensors.
    """
    if not isinstance(made, nn.Module):
        raise BadInput(f"{name} builds a {type(made).__name__}, not a torch module", field="model.name")
    state = made.state_dict(keep_vars=True)
    lazy = [key for key, value in state.items() if is_lazy(value)]
    if lazy:
        why = "has no shape before a forward pass: name the sizes in `build`, or pass a batch through it there"
        raise BadInput(f"{lazy[0]} of the model {name} {why}", field="model.name")
    odd = [key for key, value in state.items() if not isinstance(value, Tensor)]
    if odd:
        what = f"{odd[0]} in the state of the model {name} is a {type(state[odd[0]]).__name__}"
        raise BadInput(f"{what}: only tensors travel, keep it outside of the state", field="model.name")
    if type(made) is not Classifier:
        made.register_forward_hook(_OutputsOf(name))
    return made


class _OutputsOf:
    """A hook that replaces a structure by its outputs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: nn.Module, inputs: Any, found: Any) -> Tensor | None:
        """Returns the tensor of outputs, None for a tensor.

        Raises:
            BadInput: there is none, or several among which none is called `logits`.
        """
        return None if isinstance(found, Tensor) else self._tensor_in(found, found)

    def _tensor_in(self, part: Any, whole: Any) -> Tensor:
        if isinstance(part, Tensor):
            return part
        named = part if isinstance(part, Mapping) else _attributes(part)
        if isinstance(named.get(LOGITS), Tensor):
            return self._tensor_in(named[LOGITS], whole)
        if isinstance(part, tuple | list) and part:
            return self._tensor_in(part[0], whole)
        tensors = [key for key, value in named.items() if isinstance(value, Tensor)]
        if len(tensors) == 1:
            return self._tensor_in(named[tensors[0]], whole)
        parts = f" of {', '.join(map(str, named))}" if named else ""
        what = f"the model {self.name} returns a {type(whole).__name__}{parts}"
        which = f"several tensors, none of them called `{LOGITS}`" if tensors else "no tensor of outputs"
        raise BadInput(f"{what:.300}: {which}", field="model.name")


def _attributes(part: Any) -> dict[str, Any]:
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return dict(zip(part._fields, part, strict=True))
    return dict(getattr(part, "__dict__", {}))
