"""A compressed tensor, and the interface of codecs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from shared.core.errors import WireError
from shared.core.records import Record
from shared.core.tensor_records import with_tensors

Parts = tuple[Tensor, ...]


class Codec(Record):
    """One way to compress a tensor, with its settings in a spec.

    The settings are for coding; decoding needs the codec's name only.
    """

    name: str

    @classmethod
    def called(cls) -> str:
        """Returns the codec's name on the wire."""
        return str(cls.model_fields["name"].default)

    @property
    def feeds_back(self) -> bool:
        """Whether the error of an update is added to the next one (error feedback)."""
        return False

    @abstractmethod
    def encode(self, x: Tensor, what: str = "tensor") -> Coded:
        """Returns the compressed form.

        Args:
            x: float32, any shape.
            what: its name, for errors.

        Raises:
            NotFinite, OutOfBound, WireError: the codec cannot represent it, or its dtype is another.
        """

    @abstractmethod
    def n_bytes(self, n: int) -> int:
        """Returns the bytes of the parts for n elements."""

    @staticmethod
    @abstractmethod
    def check(parts: Parts, n: int) -> None:
        """Checks that parts from another process represent n elements.

        Raises:
            WireError: they represent another number of elements, or are not valid parts of this codec.
        """

    @staticmethod
    @abstractmethod
    def decode(parts: Parts, n: int) -> Tensor:
        """Returns the n elements, float32, in row-major order."""


class Coded(Tensor):
    """A float32 tensor that is held, and travels, as the parts of a codec.

    It may be used wherever a tensor may: any operation decodes it first and returns plain tensors. It cannot be written
    to, and only `decoded` takes it out of torch (not `numpy`, `tolist`).

    Attributes:
        codec: decodes the parts.
        parts: plain tensors.
        field_path: the path of the field that held it in a body, until its parts are checked; then None.
    """

    codec: type[Codec]
    parts: Parts
    field_path: str | None

    def __new__(cls, codec: type[Codec], shape: Sequence[int], parts: Parts, field_path: str | None = None) -> Coded:
        """Makes a tensor of valid parts (without `field_path`), or of parts from another process."""
        made: Any = Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=torch.float32)
        made.codec, made.parts, made.field_path = codec, parts, field_path
        found: Coded = made
        return found

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Runs an operation on the decoded tensors.

        Raises:
            TypeError: it would write to a coded tensor.
            WireError: the parts came from another process and are invalid.
        """
        if func._schema.is_mutable and args and isinstance(args[0], Coded):
            raise TypeError(f"{func} would write to a coded tensor")
        plain, more = tree_map_only(Coded, Coded.decoded, (args, kwargs or {}))
        return func(*plain, **more)

    def __repr__(self) -> str:  # type: ignore[override]
        """Names codec and shape, without decoding."""
        return f"Coded({self.codec.called()!r}, {tuple(self.shape)})"

    def decoded(self) -> Tensor:
        """Returns the decoded tensor, in torch's own memory.

        Parts from another process are checked here, before their first use, and not when the body is decoded: so an
        invalid tensor costs the update that holds it, and not those beside it in the same body.

        Raises:
            WireError: the parts are invalid; names the field.
        """
        if self.field_path is not None:
            self._check(self.field_path)
            self.field_path = None
        return self.codec.decode(self.parts, self.numel()).reshape(self.shape)

    def _check(self, field_path: str) -> None:
        try:
            self.codec.check(self.parts, self.numel())
        except WireError as error:
            fault = f"{field_path}: a tensor coded by {self.codec.called()}: {error.detail}"
            raise WireError(fault, field=field_path) from None

    @property
    def carried_bytes(self) -> int:
        """The bytes of its parts."""
        return sum(part.numel() * part.element_size() for part in self.parts)


def carried_bytes(tensor: Tensor) -> int:
    """Returns the bytes in which a tensor travels, compressed or not."""
    return tensor.carried_bytes if isinstance(tensor, Coded) else tensor.numel() * tensor.element_size()


def decoded(value: Any) -> Any:
    """Returns a record, or nested lists and maps, with compressed tensors decoded; other tensors stay the same."""
    return with_tensors(value, lambda tensor: tensor.decoded() if isinstance(tensor, Coded) else tensor)
