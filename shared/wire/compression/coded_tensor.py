"""A tensor in its short form, and what a codec is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from shared.core.errors import WireError
from shared.core.records import Record, with_tensors

Parts = tuple[Tensor, ...]


class Codec(Record):
    """One way to code a tensor, as a spec names it: its settings for coding, and how what is coded is read.

    Reading needs no settings: whoever reads knows the codec's name only.
    """

    name: str

    @classmethod
    def called(cls) -> str:
        """The name under which it travels."""
        return str(cls.model_fields["name"].default)

    @property
    def feeds_back(self) -> bool:
        """Whether what it leaves out of an update is added to the next one."""
        return False

    @abstractmethod
    def encode(self, x: Tensor, what: str = "it") -> Coded:
        """The short form.

        Args:
            x: float32, any shape.
            what: its name, for errors.

        Raises:
            NotFinite, OutOfBound, WireError: it holds what the codec cannot carry, or is of another dtype.
        """

    @abstractmethod
    def n_bytes(self, n: int) -> int:
        """Bytes of the parts of n elements."""

    @staticmethod
    @abstractmethod
    def check(parts: Parts, n: int) -> None:
        """See that parts that came from elsewhere are n elements in this form.

        Raises:
            WireError: they are not.
        """

    @staticmethod
    @abstractmethod
    def decode(parts: Parts, n: int) -> Tensor:
        """The n elements, float32, in row-major order."""


class Coded(Tensor):
    """A float32 tensor that is held, and travels, as the parts of a codec.

    It stands wherever a tensor does: any operation decodes it first and answers with plain tensors. It cannot be
    written, and leaves torch (`numpy`, `tolist`) by `decoded` only.

    Attributes:
        codec: by whose form its parts are read.
        parts: plain tensors.
        place: where it stood in a body that came from elsewhere, until its parts have been looked at; None: they are
            known to be sound.
    """

    codec: type[Codec]
    parts: Parts
    place: str | None

    def __new__(cls, codec: type[Codec], shape: Sequence[int], parts: Parts, place: str | None = None) -> Coded:
        """Of parts that are sound, or else come from a place."""
        made: Any = Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=torch.float32)
        made.codec, made.parts, made.place = codec, parts, place
        found: Coded = made
        return found

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Any operation, on what is decoded.

        Raises:
            TypeError: it would write to a coded tensor.
            WireError: its parts came from elsewhere and are none of its codec.
        """
        if func._schema.is_mutable and args and isinstance(args[0], Coded):
            raise TypeError(f"{func} would write to a coded tensor")
        plain, more = tree_map_only(Coded, Coded.decoded, (args, kwargs or {}))
        return func(*plain, **more)

    def __repr__(self) -> str:  # type: ignore[override]
        """Its form; printing decodes nothing."""
        return f"Coded({self.codec.called()!r}, {tuple(self.shape)})"

    def decoded(self) -> Tensor:
        """What it stands for, in torch's own memory.

        Parts that came from elsewhere are looked at here, before they are first used, and not where a body is read: so
        one garbled tensor costs the update that holds it, and not those that came in the same body.

        Raises:
            WireError: they are none of its codec; names the place.
        """
        if self.place is not None:
            self._check(self.place)
            self.place = None
        return self.codec.decode(self.parts, self.numel()).reshape(self.shape)

    def _check(self, place: str) -> None:
        try:
            self.codec.check(self.parts, self.numel())
        except WireError as error:
            told = f"{place}: a tensor coded by {self.codec.called()}: {error.detail}"
            raise WireError(told, field=place) from None

    @property
    def carried_bytes(self) -> int:
        """Bytes of its parts."""
        return sum(part.numel() * part.element_size() for part in self.parts)


def carried_bytes(tensor: Tensor) -> int:
    """Bytes in which a tensor travels, coded or not."""
    return tensor.carried_bytes if isinstance(tensor, Coded) else tensor.numel() * tensor.element_size()


def decoded(value: Any) -> Any:
    """A record, or values in lists and maps, in which coded tensors are plain ones; other tensors stay the same."""
    return with_tensors(value, lambda tensor: tensor.decoded() if isinstance(tensor, Coded) else tensor)
