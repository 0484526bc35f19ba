"""A module as it was made: what it keeps beside its state is put back before each use.

One module of a process serves all clients that train there. What one of them leaves behind outside of the parameters
and buffers of the state must not be seen by the next: a recurrent state, a counter, a buffer that is not saved, a hook,
a frozen parameter, an attribute of the user's class, a global variable.
"""

from __future__ import annotations

import copy
import re
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from shared.core.errors import BadInput
from shared.core.user_code import described, is_of_user
from shared.training.models.classifier import features_of, own_state
from shared.training.models.parts import fix_parts
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
        if not self._changes:
            fix_parts(model)

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


def copied(model: nn.Module, who: str) -> nn.Module:
    """Returns a copy of a module that shares nothing with it.

    Args:
        model: the module.
        who: what works with copies, for the message.

    Raises:
        BadInput: it cannot be copied, or a function of the copy would refer to the module itself.
    """
    what = f"{who} of copies of the model, but {type(model).__name__}"
    try:
        made: nn.Module = copy.deepcopy(model)
    except Exception as error:
        raise BadInput(f"{what} cannot be copied: {described(error)}", field="model.name") from error
    reached = Remembered(made, type(model).__name__)
    if reached.has_code_of_user:
        for name, part in model.named_modules():
            if reached.reaches(part):
                which = f"`{name}`" if name else "the module"
                cause = f"has a function that refers to {which} from outside, also in a copy: refer to it by `self`"
                raise BadInput(f"{what} {cause}", field="model.name")
    return made


def check_features(model: nn.Module, x: Tensor, who: str) -> None:
    """Checks that a model is what its attributes say: its outputs are those of `head` on `features`.

    Args:
        model: any model, of which copies compute.
        x: a batch of samples.
        who: what takes the model for that, for the message.

    Raises:
        BadInput: an attribute is missing, the model does something else than these two, or it cannot be copied.
    """
    features_of(model, who)
    one, other = (copied(model, f"{who} makes use").eval() for _ in range(2))
    parts = features_of(other, who)
    with torch.no_grad():
        try:
            whole, split = one(x), parts.head(parts.features(x))
            same = torch.allclose(whole.float(), split.float(), rtol=1e-3, atol=1e-5)
        except (RuntimeError, AttributeError, TypeError):  # shapes do not fit, or the outputs are no tensor
            same = False
    if not same:
        cause = f"{who} takes a model for `head(features(x))`, but the `forward` of {type(model).__name__} does more"
        raise BadInput(f"{cause}: put all that comes before the last layer into `features`", field="model.name")


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
