"""Putting objects back in place: what changed within them since they were remembered.

They are not copied, since closures, hooks and bound methods refer to the objects themselves.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from operator import is_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.core.errors import BadInput
from shared.core.user_code import is_of_user

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type, ModuleType, torch.dtype, torch.device})
_REACHED = (OrderedDict, partial, random.Random)
"""Types of Python's own whose attributes are remembered as those of a user's types are."""
_Part = tuple[str, Any]
"""A step, as it is written after the path of an object, and what it leads to."""


class Remembered:
    """The contents of an object and of all that is reachable from it.

    Attributes:
        has_code_of_user: whether a function or an object of a user's class is among it, which may change it.
        loose: paths of the tensors with gradients whose values are put back: nothing trains them.

    Args:
        root: the object.
        path: of the object, for messages.
        moving: ids of the tensors whose values may differ; their shapes, flags and attributes may not.

    Raises:
        BadInput: an iterator is among them, which cannot be set back; the message has its path.
    """

    def __init__(self, root: Any, path: str, moving: Collection[int] = ()) -> None:
        self._moving = moving
        self.has_code_of_user = False
        self.loose: list[str] = []
        self._empty: list[dict[Any, Any]] = []
        self._dicts: list[tuple[dict[Any, Any], list[Any], list[Any]]] = []  # with keys and values
        self._others: list[Callable[[], object]] = []
        self._seen: dict[int, Any] = {}  # holds what it has seen, so that no id is used twice
        self.add(root, path)

    def restore(self) -> None:
        """Puts all of it back."""
        if any(self._empty):
            for held in self._empty:
                held.clear()
        for held, keys, values in self._dicts:
            if [*held] != keys or not all(map(is_, held.values(), values)):
                _refill(held, dict(zip(keys, values, strict=True)))
        for restore in self._others:
            restore()

    def reaches(self, value: Any) -> bool:
        """Returns whether an object is among what was remembered."""
        return id(value) in self._seen

    def add(self, value: Any, path: str) -> None:
        """Remembers a further object."""
        waiting: list[_Part] = [(path, value)]
        while waiting:
            path, value = waiting.pop()
            if type(value) not in _ATOMS and id(value) not in self._seen:
                self._seen[id(value)] = value
                waiting += [(path + step, part) for step, part in self._parts(value, path)]

    def globals_of(self, function: FunctionType) -> None:
        """Remembers the global variables that a function of a user names, and those of the functions among them."""
        scope, code = function.__globals__, function.__code__
        if id(code) in self._seen or not is_of_user(str(scope.get("__name__"))):
            return
        self._seen[id(code)] = code
        names = sorted(_names_in(code))
        held = {name: scope[name] for name in names if name in scope}
        self._others.append(partial(_restore_names, scope, names, held))
        for name, value in held.items():
            self.add(value, name)

    def _parts(self, value: Any, path: str) -> list[_Part]:
        """Remembers one object; returns its parts."""
        self.has_code_of_user |= is_of_user(_module_of(value))
        if isinstance(value, Tensor):
            if value.is_leaf and value.requires_grad and id(value) not in self._moving:
                self.loose.append(path)
            self._others.append(_KeptTensor(value, with_values=id(value) not in self._moving))
            return [("", vars(value)), ("", value._backward_hooks)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return [("", value.__self__), ("", value.__func__)]
        if isinstance(value, dict):
            self._dict(value)
            return [*((f"[{key!r:.40}]", part) for key, part in value.items()), *self._attributes(value)]
        if isinstance(value, list | tuple | set | frozenset | deque):
            self._others += _of_container(value)
            return [*((f"[{at}]", part) for at, part in enumerate(value)), *self._attributes(value)]
        if isinstance(value, Iterator) and not hasattr(value, "fileno"):
            what = f"{path} of the model is an iterator ({type(value).__name__})"
            why = "it cannot be set back for the next client: keep a position in its place"
            raise BadInput(f"{what}; {why}", field="model.name")
        self._others += _of_source(value)
        return self._attributes(value)

    def _dict(self, value: dict[Any, Any]) -> None:
        if value:
            self._dicts.append((value, [*value], [*value.values()]))
        else:
            self._empty.append(value)

    def _attributes(self, value: Any) -> list[_Part]:
        """The attributes of an object; classes, modules, and types of Python's own have none that a model changes."""
        kind = type(value)
        own_of_python = kind.__module__.partition(".")[0] in sys.stdlib_module_names and kind.__module__ != "types"
        if isinstance(value, type | ModuleType) or (own_of_python and not issubclass(kind, _REACHED)):
            return []
        slots = {name: getattr(value, name) for name in slots_of(kind) if hasattr(value, name)}
        if slots:
            self._others.append(partial(_restore_slots, value, slots))
        own = getattr(value, "__dict__", None)
        found = [(f".{name}", part) for name, part in slots.items()]
        if isinstance(own, dict) and id(own) not in self._seen:
            self._seen[id(own)] = own
            self._dict(own)
            found += [(f".{name}", part) for name, part in own.items()]
        return found

    def _function(self, value: FunctionType) -> list[_Part]:
        held = [(cell, cell.cell_contents) for cell in value.__closure__ or () if cell != CellType()]
        if held:
            self._others.append(partial(_restore_cells, held))
        self.globals_of(value)
        inner = [part for _, part in held]
        return [("", part) for part in (*inner, value.__defaults__, value.__kwdefaults__, value.__dict__)]


def _module_of(value: Any) -> str:
    return str(value.__module__ if isinstance(value, FunctionType) else type(value).__module__)


def _names_in(code: CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def slots_of(kind: type) -> list[str]:
    """Returns the names of the attributes of a type's objects that are kept in slots."""
    found: list[str] = []
    for each in kind.__mro__:
        named = vars(each).get("__slots__", ())
        found += [named] if isinstance(named, str) else named
    return [name for name in found if name not in ("__dict__", "__weakref__") and not name.startswith("__")]


# ---- what puts one object back


def _refill(held: dict[Any, Any], saved: dict[Any, Any]) -> None:
    kind: Any = OrderedDict if isinstance(held, OrderedDict) else dict  # a type of the user's may forbid it
    kind.clear(held)
    for key, value in saved.items():
        kind.__setitem__(held, key, value)


def _of_container(value: Any) -> list[Callable[[], object]]:
    if isinstance(value, list):
        return [partial(_restore_list, value, list(value))]
    if isinstance(value, set):
        return [partial(_restore_set, value, set(value))]
    return [partial(_restore_deque, value, list(value))] if isinstance(value, deque) else []


def _restore_list(held: list[Any], saved: list[Any]) -> None:
    if list(map(id, held)) != list(map(id, saved)):
        held[:] = saved


def _restore_set(held: set[Any], saved: set[Any]) -> None:
    if held != saved:
        held.clear()
        held.update(saved)


def _restore_deque(held: deque[Any], saved: list[Any]) -> None:
    held.clear()
    held.extend(saved)


def _of_source(value: Any) -> list[Callable[[], object]]:
    """Arrays and random streams."""
    if isinstance(value, torch.Generator):
        return [partial(value.set_state, value.get_state().clone())]
    if isinstance(value, np.random.Generator):
        return _of_source(value.bit_generator)
    if isinstance(value, np.random.BitGenerator):
        return [partial(setattr, value, "state", value.state)]
    if isinstance(value, np.random.RandomState):
        return [partial(value.set_state, value.get_state())]
    if isinstance(value, random.Random):
        return [partial(value.setstate, value.getstate())]
    if isinstance(value, bytearray | array):
        return [partial(value.__setitem__, slice(None), value[:])]
    if isinstance(value, np.ndarray) and value.flags.writeable:
        return [partial(np.copyto, value, value.copy(), casting="unsafe")]
    return []


def _restore_names(scope: dict[str, Any], names: Sequence[str], saved: dict[str, Any]) -> None:
    for name in names:
        if name in saved:
            scope[name] = saved[name]
        else:
            scope.pop(name, None)


def _restore_slots(held: Any, saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if getattr(held, name, None) is not value:
            object.__setattr__(held, name, value)


def _restore_cells(saved: list[tuple[CellType, Any]]) -> None:
    for cell, value in saved:
        cell.cell_contents = value


class _KeptTensor:
    """A tensor as it was: shape, type, whether it is trained, its hooks, no gradient and, if wanted, its values."""

    def __init__(self, tensor: Tensor, *, with_values: bool) -> None:
        self.tensor, self.trained, self.hooks = tensor, tensor.requires_grad, tensor._backward_hooks
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.values = _once(tensor.detach()).clone() if with_values else None

    def __call__(self) -> None:
        tensor = self.tensor
        if tensor.shape != self.shape or tensor.dtype != self.dtype:
            tensor.data = torch.zeros(self.shape, dtype=self.dtype, device=tensor.device)
        if tensor.requires_grad != self.trained and tensor.is_leaf:
            tensor.requires_grad_(self.trained)
        if tensor.is_leaf and tensor.grad is not None:
            tensor.grad = None
        if tensor._backward_hooks is not self.hooks:
            tensor._backward_hooks = self.hooks
        if self.values is not None:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                _once(tensor).copy_(self.values)


def _once(tensor: Tensor) -> Tensor:
    """A view of each element of a tensor once: `expand` shows elements several times, which cannot be written."""
    if tensor.layout == torch.strided:
        for dim, step in enumerate(tensor.stride()):
            tensor = tensor.narrow(dim, 0, 1) if step == 0 and tensor.shape[dim] else tensor
    return tensor
