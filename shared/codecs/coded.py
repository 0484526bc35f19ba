"""A tensor in its short form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from shared.errors import WireError
from shared.records import Record

Parts = tuple[Tensor, ...]


class Form(NamedTuple):
    """How a codec's parts are read: both functions get them with the number of elements that they stand for.

    Attributes:
        see: raises WireError where parts that came from elsewhere are none of this codec.
        decode: the elements, float32, in row-major order.
    """

    see: Callable[[Parts, int], None]
    decode: Callable[[Parts, int], Tensor]


FORMS: dict[str, Form] = {}
"""By the codec's name; `shared.codecs.forms` has them."""


class Coded(Tensor):
    """A float32 tensor that is held, and travels, as the parts of a codec.

    It stands wherever a tensor does: any operation decodes it first and answers with plain tensors. It cannot be
    written, and leaves torch (`numpy`, `tolist`) by `decoded` only.

    Attributes:
        codec: by whose form its parts are read.
        parts: plain tensors.
    """

    codec: str
    parts: Parts

    def __new__(cls, codec: str, shape: Sequence[int], parts: Parts) -> Coded:
        """Of parts that are known to be sound."""
        made: Any = Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=torch.float32)
        made.codec, made.parts = codec, parts
        found: Coded = made
        return found

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Any operation, on what is decoded.

        Raises:
            TypeError: it would write to a coded tensor.
        """
        if func._schema.is_mutable and args and isinstance(args[0], Coded):
            raise TypeError(f"{func} would write to a coded tensor")
        plain, more = tree_map_only(Coded, Coded.decoded, (args, kwargs or {}))
        return func(*plain, **more)

    def __repr__(self) -> str:  # type: ignore[override]
        """Its form; printing decodes nothing."""
        return f"Coded({self.codec!r}, {tuple(self.shape)})"

    def decoded(self) -> Tensor:
        """What it stands for, in torch's own memory."""
        return FORMS[self.codec].decode(self.parts, self.numel()).reshape(self.shape)

    @property
    def carried_bytes(self) -> int:
        """Bytes of its parts."""
        return sum(part.numel() * part.element_size() for part in self.parts)


def from_parts(codec: str, shape: Sequence[int], parts: Parts) -> Coded:
    """A coded tensor whose parts came from elsewhere.

    Raises:
        WireError: there is no such codec, or they are none of its parts.
    """
    if codec not in FORMS:
        raise WireError(f"there is no codec {codec[:40]!r}")
    made = Coded(codec, shape, parts)
    try:
        FORMS[codec].see(parts, made.numel())
    except WireError as error:
        raise WireError(f"a tensor coded by {codec}: {error.detail}") from None
    return made


def carried_bytes(tensor: Tensor) -> int:
    """Bytes in which a tensor travels, coded or not."""
    return tensor.carried_bytes if isinstance(tensor, Coded) else tensor.numel() * tensor.element_size()


def decoded(value: Any) -> Any:
    """A record, or values in lists and maps, in which coded tensors are plain ones; other tensors stay the same."""
    if isinstance(value, Coded):
        return value.decoded()
    if isinstance(value, Record):
        kind = type(value)
        return kind.model_construct(**{name: decoded(getattr(value, name)) for name in kind.model_fields})
    if isinstance(value, Mapping):
        return {key: decoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(decoded(item) for item in value)
    return value
