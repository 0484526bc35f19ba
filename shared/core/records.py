"""Typed, frozen records: messages between tiers, and states that a tier keeps.

The leaves of a record are JSON values and tensors. Any other value is refused when the record is made, so that whatever
a hook returns can be sent, stored and read again.

Every field of an *update* has an aggregation rule (`shared.core.update_annotations`), by which agent, edge and cloud
add updates up without knowing the algorithm.
"""

from __future__ import annotations

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

LEFT_OUT: Any = Field(exclude_if=lambda value: value is None)
"""A field that is not written where it is None, so that specs without it keep their digests and sizes."""


def _tighten(schema: Any) -> None:
    """Sets `fail_fast` on all collections of a core schema of pydantic, and `strict` on its numbers, in place.

    The keys of a map are texts in JSON, whatever they stand for.
    """
    if isinstance(schema, list | tuple):
        for item in schema:
            _tighten(item)
    elif isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple", "set", "frozenset", "dict"):
            schema["fail_fast"] = True
        if schema.get("type") in ("int", "float", "bool"):
            schema["strict"] = True
        for key, value in schema.items():
            if key not in ("metadata", "keys_schema"):
                _tighten(value)


class Record(BaseModel):
    """A frozen, closed set of fields; unknown fields, NaN and infinity are refused.

    Of a list or map only the first wrong item is reported: a body of a few megabytes could have millions of them, and
    an error takes a thousand times the memory of the item.

    A number is a number: the text `"0.1"` is none, `true` is none, and `3.0` is no whole number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Returns the schema of the fields, tightened."""
        schema = handler(source)
        _tighten(schema)
        return schema

    def replace(self, **changes: object) -> Self:
        """Returns a copy with some fields changed, validated (pydantic's `model_copy` validates nothing)."""
        fields = {name: getattr(self, name) for name in type(self).model_fields} | (self.model_extra or {})
        return type(self).model_validate({**fields, **changes})


class Nothing(Record):
    """The empty record: the state of a tier that keeps none, the report of a visit that has none."""


def canonical(record: Record) -> str:
    """Returns a record without tensors as JSON with sorted keys and no spaces, whose digest identifies it."""
    return json.dumps(record.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
