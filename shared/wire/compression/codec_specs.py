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
    """The codecs between an edge and its devices; None means uncompressed.

    Attributes:
        up: for updates.
        down: for models; not `topk`, which would set most weights to 0.
    """

    up: Annotated[CodecSpec, Field(discriminator="name")] | None = None
    down: Annotated[CodecSpec, Field(discriminator="name")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, raw: Any) -> Any:
        """Reads `up: ternary` as `up: {name: ternary}`, and an empty section as no codec."""
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
            raise ValueError("down: topk is for updates; it would set most weights of a model to 0")
        return self


def from_parts(codec: str, shape: Sequence[int], parts: Parts, field_path: str) -> Coded:
    """Returns a compressed tensor of a body; its parts are checked when it is decoded.

    Args:
        codec: the name of its codec.
        shape: of the decoded tensor.
        parts: of the codec.
        field_path: path of its field in the body.

    Raises:
        WireError: there is no such codec.
    """
    if codec not in CODECS:
        raise WireError(f"there is no codec {codec[:40]!r}")
    return Coded(CODECS[codec], shape, parts, field_path)
