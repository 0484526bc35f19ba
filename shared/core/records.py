"""Typed, frozen records: what travels between tiers, and what a tier remembers.

A record's leaves are JSON values and tensors. Anything else is refused when the record is made, so that
whatever a hook returns can be sent, stored and read again.

Every field of an *update* says how it travels up (`Mean` or `Each`); from that alone an agent, an edge and the
cloud add updates up without knowing the algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self, get_args

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema

Tensor = torch.Tensor
TensorMap = dict[str, Tensor]
Count = Annotated[int, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0)]


def _like_model(value: TensorMap, info: ValidationInfo) -> TensorMap:
    """Compare names, shapes and dtypes with the run's model, where the reader of the record gave one."""
    template: Mapping[str, Tensor] | None = (info.context or {}).get("model")
    if template is None:
        return value
    for name, tensor in value.items():
        own = template.get(name)
        if own is None:
            raise ValueError(f"the run's model has no tensor {name!r}")
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            raise ValueError(
                f"{name!r} is {tensor.dtype} {tuple(tensor.shape)}, the model's is {own.dtype} {tuple(own.shape)}"
            )
    return value


ModelState = Annotated[TensorMap, AfterValidator(_like_model)]
"""Tensors of the run's model by name, parameters and buffers, or some of them; checked where they arrive."""
_IS_MODEL_STATE = AfterValidator(_like_model)


def holds_model_state(kind: type[BaseModel], name: str) -> bool:
    """Whether a field of a record is a `ModelState`, may be one, or holds several by name."""
    field = kind.model_fields[name]
    return _IS_MODEL_STATE in field.metadata or _mentions_model_state(field.annotation)


def _mentions_model_state(annotation: Any) -> bool:
    parts = get_args(annotation)
    return any(part == _IS_MODEL_STATE or _mentions_model_state(part) for part in parts)


def _fail_fast(schema: Any) -> None:
    """Set pydantic's `fail_fast` on all collections of a core schema, in place."""
    if isinstance(schema, list | tuple):
        for item in schema:
            _fail_fast(item)
    elif isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple", "set", "frozenset", "dict"):
            schema["fail_fast"] = True
        for key, value in schema.items():
            if key != "metadata":
                _fail_fast(value)


class Record(BaseModel):
    """A frozen, closed set of fields; unknown fields, NaN and infinity are refused.

    Of a list or map only the first wrong item is told: a body of a few megabytes could have millions of them, and
    an error of each takes a thousand times the memory of what is wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The fields' schema, in which collections end at their first wrong item."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    def replace(self, **changes: object) -> Self:
        """A copy with some fields changed, validated like a new one (pydantic's `model_copy` validates nothing)."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**fields, **changes})


def copy_tensors(value: Any) -> Any:
    """A record, or values in lists and maps, with tensors copied into torch's own memory.

    Views of a body would change bits in training, and keep the whole body in memory. A tensor that stands in several
    places is copied once.
    """
    made: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return made[id(tensor)]

    return with_tensors(value, copied)


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A record, or values in lists and maps, with each tensor changed and all else as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Record):
        kind = type(value)
        return kind.model_construct(**{name: with_tensors(getattr(value, name), change) for name in kind.model_fields})
    if isinstance(value, dict):
        return {key: with_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [with_tensors(item, change) for item in value]
    if type(value) is tuple:
        return tuple(with_tensors(item, change) for item in value)
    return value


def same_leaves(a: object, b: object) -> bool:
    """Whether two values hold the same tensors (not copies of them) and equal JSON values, in the same places."""
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, Tensor):
        return False
    if isinstance(a, Record):
        return all(same_leaves(getattr(a, name), getattr(b, name)) for name in type(a).model_fields)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same_leaves(item, b[key]) for key, item in a.items())
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same_leaves, a, b))
    return a == b


class Nothing(Record):
    """The state of a tier that remembers nothing, the report of a visit that reports nothing."""


def canonical(record: Record) -> str:
    """A record without tensors as JSON with sorted keys and no spaces."""
    return json.dumps(record.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
