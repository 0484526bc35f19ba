"""A module as it was made: what it keeps beside its state is put back before each use.

One module of a process serves all clients that train there. What one of them leaves behind outside of the parameters
and buffers of the state must not be seen by the next: a recurrent state, a counter, a buffer that is not saved, a hook,
a frozen parameter, an attribute of the user's class, a global variable.
"""

from __future__ import annotations

import re
from functools import cache
from types import FunctionType
from typing import Any

from torch import nn

from shared.core.user_code import is_of_user
from shared.training.models.classifier import own_state
from shared.training.restoring import Remembered


class Pristine:
    """A module, and what it takes to make it as it is now.

    Modules of torch's and ours keep nothing beside their state: without code of a user there is nothing to put back.

    Args:
        model: the module.
        watched: whether code of a user gets the module, as an algorithm's does, although none may be in it.

    Raises:
        BadInput: the module holds an iterator, which cannot be set back.
    """

    def __init__(self, model: nn.Module, *, watched: bool = False) -> None:
        self._model = model
        self._classes = [(module, type(module)) for module in model.modules()]
        self._own = Remembered(model, type(model).__name__, {id(tensor) for tensor in own_state(model).values()})
        self._changes = watched or self._own.has_code_of_user
        kinds = dict.fromkeys(kind for _, own in self._classes for kind in own.__mro__)
        self._shared = [found for kind in kinds if (found := _of_class(kind)) is not None]

    def restored(self) -> nn.Module:
        """Returns the module as it was; the values of parameters and buffers of its state are left as they are."""
        if not self._changes:
            return self._model
        for module, kind in self._classes:
            if type(module) is not kind:
                module.__class__ = kind
        self._own.restore()
        for shared in self._shared:
            shared.restore()
        return self._model


def unregistered(model: nn.Module) -> tuple[str, ...]:
    """Returns the tensors with gradients that a module holds beside its state, which are neither trained nor sent."""
    name = type(model).__name__
    found = Remembered(model, name, {id(tensor) for tensor in own_state(model).values()}).loose
    own = (path.removeprefix(f"{name}.") for path in sorted(found) if path.startswith(f"{name}."))
    return tuple(re.sub(r"\._(?:parameters|buffers|modules)\['(.*?)'\]", r".\1", f".{path}")[1:] for path in own)


class _OfClass:
    """A user's class, and the global variables that its methods name."""

    def __init__(self, kind: type) -> None:
        self.kind, self.data = kind, _data_of(kind)
        self.reached = Remembered(list(self.data.values()), kind.__name__)
        for value in vars(kind).values():
            for each in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "fset"))):
                if isinstance(each, FunctionType):
                    self.reached.add(each, kind.__name__)

    def restore(self) -> None:
        """Puts class and global variables back."""
        now = _data_of(self.kind)
        for name in now.keys() - self.data.keys():
            delattr(self.kind, name)
        for name, value in self.data.items():
            if name not in now or now[name] is not value:
                setattr(self.kind, name, value)
        self.reached.restore()


@cache
def _of_class(kind: type) -> _OfClass | None:
    """A class as it was when the process first used it; None if it is no user's."""
    return _OfClass(kind) if is_of_user(kind.__module__) else None


def _data_of(kind: type) -> dict[str, Any]:
    """The attributes of a class that are data."""
    no_data = (FunctionType, classmethod, staticmethod, property, type)
    found = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
    return {name: value for name, value in found.items() if not isinstance(value, no_data)}
