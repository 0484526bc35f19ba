"""Compression as a spec names it: the codecs with their settings. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shared.core.records import Record


class Fp16Settings(Record):
    """Half precision has none."""

    name: Literal["fp16"] = "fp16"


class Int8Settings(Record):
    """Steps of a 127th of the largest magnitude have none."""

    name: Literal["int8"] = "int8"


class TernarySettings(Record):
    """Of one magnitude a tensor and two bits an element.

    Attributes:
        threshold: elements of at most this many times the mean magnitude become 0; 0.7 in Ternary Weight Networks.
    """

    name: Literal["ternary"] = "ternary"
    threshold: Annotated[float, Field(ge=0, le=10)] = 0.7


class TopKSettings(Record):
    """Of the largest elements of each tensor.

    Attributes:
        fraction: the share of elements that travels.
        memory: whether the others are added to the next update (error feedback).
    """

    name: Literal["topk"] = "topk"
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.01
    memory: bool = True


CodecSpec = Fp16Settings | Int8Settings | TernarySettings | TopKSettings


class CompressionSpec(Record):
    """The codecs of a link, between an edge and its devices or between cloud and edges; None means uncompressed.

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
        if isinstance(self.down, TopKSettings):
            raise ValueError("down: topk is for updates; it would set most weights of a model to 0")
        return self


EdgeCompression = Annotated[CompressionSpec, Field(exclude_if=lambda value: value == CompressionSpec())]
"""Left out of a spec that compresses nothing between cloud and edges."""
