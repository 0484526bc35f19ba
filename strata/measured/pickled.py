"""The data in a pickled file, read without unpickling it.

A pickle is a program for a machine with a stack. `pickletools` parses its instructions and carries none out; here those
are carried out that build numbers, texts, lists, tuples and dictionaries. An instruction that would import, call or
change anything else is refused. Of NumPy's scalars, which are calls, the two names are known, and their bytes are read.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from shared.core.errors import BadInput

_MARK = object()
_SCALAR, _DTYPE = object(), object()
_KNOWN = {
    "numpy.core.multiarray scalar": _SCALAR,
    "numpy._core.multiarray scalar": _SCALAR,
    "numpy dtype": _DTYPE,
}
_KIND = re.compile(r"[fiu][1248]|b1")
_VALUES = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
)
"""Instructions that push their argument."""
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_WITHOUT_EFFECT = frozenset({"PROTO", "FRAME", "STOP"})
_FLAT = (int, float, str, bytes, type(None))
MOST_PARTS = 10
"""Most parts of a tuple that is a key."""
MOST_STEPS = 100_000_000
"""Most instructions of a file; each adds at most one value."""


class _Dtype:
    """The type of a scalar: its kind with its size, and its byte order."""

    def __init__(self, kind: object) -> None:
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            named = kind[:40] if isinstance(kind, str) else type(kind).__name__
            raise BadInput(f"a scalar of NumPy of the type {named!r}, which is no number")
        self.kind, self.order = kind, "<"

    def value(self, raw: object) -> Any:
        """The number in the bytes of a scalar."""
        dtype = np.dtype(self.order + self.kind)
        if not isinstance(raw, bytes) or len(raw) != dtype.itemsize:
            raise BadInput(f"a scalar of NumPy of the type {self.kind} has other bytes than that")
        return np.frombuffer(raw, dtype)[0].item()


def data_in(content: bytes) -> Any:
    """Return the value in a pickled file.

    Raises:
        BadInput: it is no pickle, or holds more than numbers, texts, lists, tuples and dictionaries.
    """
    machine = _Machine()
    try:
        for n, (code, argument, _) in enumerate(pickletools.genops(content)):
            if n == MOST_STEPS:
                raise BadInput(f"it has more than {MOST_STEPS:,} instructions")
            machine.do(code.name, argument)
        (found,) = machine.stack
    except BadInput:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise BadInput(f"it is not a pickle of numbers, texts, lists and dictionaries ({str(error)[:200]})") from None
    return found


class _Machine:
    """The stack and the memory of values that were met before."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        """Carry out one instruction."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memory[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self.memory[len(self.memory)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memory[int(argument)])
        elif name in ("SETITEMS", "APPENDS"):
            items = self._since_mark()
            _fill(stack[-1], items, pairs=name == "SETITEMS")
        elif name in ("SETITEM", "APPEND"):
            n = 2 if name == "SETITEM" else 1
            items = stack[-n:]
            del stack[-n:]
            _fill(stack[-1], items, pairs=n == 2)
        elif name in ("DICT", "LIST", "TUPLE"):
            items = self._since_mark()
            found: Any = {} if name == "DICT" else []
            _fill(found, items, pairs=name == "DICT")
            stack.append(tuple(found) if name == "TUPLE" else found)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            stack[-n:] = [tuple(stack[-n:])]
        elif name not in _WITHOUT_EFFECT:
            self._scalar(name, argument)

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:  # from above: what is passed over is taken
            if at == 0:
                raise ValueError("no mark")
            at -= 1
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _scalar(self, name: str, argument: Any) -> None:
        """An instruction that imports, calls or changes; refused unless it makes a number of NumPy."""
        stack = self.stack
        if name == "STACK_GLOBAL":
            module, attribute = stack[-2:]
            del stack[-2:]
            if not isinstance(module, str) or not isinstance(attribute, str):
                raise BadInput("it names something by what is no text: it is not read")
            argument = f"{module} {attribute}"
        if name in ("GLOBAL", "STACK_GLOBAL"):
            if argument not in _KNOWN:
                raise BadInput(f"it names {str(argument).replace(' ', '.')[:100]!r}, which is not data: it is not read")
            stack.append(_KNOWN[argument])
        elif name == "REDUCE" and stack[-2] is _DTYPE:
            stack[-2:] = [_Dtype(stack[-1][0])]
        elif name == "REDUCE" and stack[-2] is _SCALAR and isinstance(stack[-1][0], _Dtype):
            dtype, raw = stack[-1]
            stack[-2:] = [dtype.value(raw)]
        elif name == "BUILD" and isinstance(stack[-2], _Dtype):
            order = stack.pop()[1]
            stack[-1].order = order if order in ("<", ">") else "|"
        else:
            raise BadInput(f"it has the instruction {name}, which does not make data: it is not read")


def _fill(container: Any, items: list[Any], *, pairs: bool) -> None:
    """Put items into a dictionary, as keys and values in turn, or into a list."""
    if pairs and isinstance(container, dict):
        if not all(map(_is_key, items[::2])):
            raise ValueError("a key is neither a number nor a text, nor a few of them")
        container.update(zip(items[::2], items[1::2], strict=True))
    elif not pairs and isinstance(container, list):
        container.extend(items)
    else:
        raise ValueError("items for what is neither a list nor a dictionary")


def _is_key(value: Any) -> bool:
    """Whether a value is hashed at once: a number or a text, or a few of them."""
    if isinstance(value, tuple):
        return len(value) <= MOST_PARTS and all(isinstance(part, _FLAT) and _is_key(part) for part in value)
    return isinstance(value, _FLAT) and not (isinstance(value, int) and value.bit_length() > 64)
