"""Compression as a spec names it, and the codecs by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from shared.core.errors import WireError
from shared.core.records import Record
from shared.wire.compression.codecs import Fp16, Int8, Ternary, TopK
from shared.wire.compression.coded_tensor import Codec, Coded, Parts

CodecSpec = Fp16 | Int8 | Ternary | TopK
CODECS: dict[str, type[Codec]] = {codec.called(): codec for codec in (Fp16, Int8, Ternary, TopK)}


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


def from_parts(codec: str, shape: Sequence[int], parts: Parts, place: str) -> Coded:
    """A coded tensor that stood at a place of a body; its parts are looked at when it is decoded.

    Raises:
        WireError: there is no such codec.
    """
    if codec not in CODECS:
        raise WireError(f"there is no codec {codec[:40]!r}")
    return Coded(CODECS[codec], shape, parts, place)
