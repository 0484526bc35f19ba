"""Typed, frozen records: messages between tiers, and states that a tier keeps.

The leaves of a record are JSON values and tensors. Any other value is refused when the record is made, so that whatever
a hook returns can be sent, stored and read again.

Every field of an *update* has an aggregation rule (`shared.core.update_annotations`), by which agent, edge and cloud
add updates up without knowing the algorithm.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

Count = Annotated[int, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0)]


def _fail_fast(schema: Any) -> None:
    """Sets pydantic's `fail_fast` on all collections of a core schema, in place."""
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

    Of a list or map only the first wrong item is reported: a body of a few megabytes could have millions of them, and
    an error takes a thousand times the memory of the item.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Returns the schema of the fields, in which validation of a collection ends at its first wrong item."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    def replace(self, **changes: object) -> Self:
        """Returns a copy with some fields changed, validated (pydantic's `model_copy` validates nothing)."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**fields, **changes})


class Nothing(Record):
    """The empty record: the state of a tier that keeps none, the report of a visit that has none."""


def canonical(record: Record) -> str:
    """Returns a record without tensors as JSON with sorted keys and no spaces, whose digest identifies it."""
    return json.dumps(record.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
