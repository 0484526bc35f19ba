"""Compression as a spec names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from shared.codecs import forms
from shared.codecs.coded import Coded
from shared.records import Record, Tensor


class Fp16(Record):
    """Half precision."""

    name: Literal["fp16"] = "fp16"
    memory: ClassVar[bool] = False

    def encode(self, x: Tensor, what: str) -> Coded:
        """The tensor's short form."""
        return forms.fp16(x, what)

    def n_bytes(self, n: int) -> int:
        """Of the short form of n elements."""
        return forms.fp16_bytes(n)


class Int8(Record):
    """Whole numbers of steps of a 127th of a tensor's largest magnitude."""

    name: Literal["int8"] = "int8"
    memory: ClassVar[bool] = False

    def encode(self, x: Tensor, what: str) -> Coded:
        """The tensor's short form."""
        return forms.int8(x, what)

    def n_bytes(self, n: int) -> int:
        """Of the short form of n elements."""
        return forms.int8_bytes(n)


class Ternary(Record):
    """One magnitude a tensor and two bits an element.

    Attributes:
        threshold: what is below so many times the mean magnitude becomes 0; 0.7 is that of Ternary Weight Networks.
    """

    name: Literal["ternary"] = "ternary"
    threshold: Annotated[float, Field(ge=0, le=10)] = 0.7
    memory: ClassVar[bool] = False

    def encode(self, x: Tensor, what: str) -> Coded:
        """The tensor's short form."""
        return forms.ternary(x, what, threshold=self.threshold)

    def n_bytes(self, n: int) -> int:
        """Of the short form of n elements."""
        return forms.ternary_bytes(n)


class TopK(Record):
    """The largest elements of each tensor.

    Attributes:
        fraction: the share of them that travels.
        memory: what did not travel is added to the next update (error feedback).
    """

    name: Literal["topk"] = "topk"
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.01
    memory: bool = True

    def encode(self, x: Tensor, what: str) -> Coded:
        """The tensor's short form."""
        return forms.topk(x, what, fraction=self.fraction)

    def n_bytes(self, n: int) -> int:
        """Of the short form of n elements."""
        return forms.topk_bytes(n, self.fraction)


CodecSpec = Fp16 | Int8 | Ternary | TopK


class CompressionSpec(Record):
    """How parameters travel between an edge and its devices; None = as they are.

    Attributes:
        up: of updates.
        down: of models; not `topk`: a model of its largest weights is none.
    """

    up: Annotated[CodecSpec, Field(discriminator="name")] | None = None
    down: Annotated[CodecSpec, Field(discriminator="name")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, raw: Any) -> Any:
        """`up: ternary` stands for `{name: ternary}`, nothing at all for no codec."""
        if raw is None:
            return {}
        if isinstance(raw, str):
            raise ValueError(f"say which way: {{up: {raw}}}, {{down: {raw}}} or both")
        if not isinstance(raw, Mapping):
            return raw
        return {key: {"name": value} if isinstance(value, str) else value for key, value in raw.items()}

    @model_validator(mode="after")
    def _models_are_whole(self) -> CompressionSpec:
        if isinstance(self.down, TopK):
            raise ValueError("down: topk is for updates: a model of its largest weights is none")
        return self
