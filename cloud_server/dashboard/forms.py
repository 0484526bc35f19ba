"""A JSON schema as fields of a form, and what was filled in as a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shared.core import parsing

Kind = Literal["text", "integer", "number", "switch", "choice", "yaml"]
_SIMPLE: Mapping[str, Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "switch"}


@dataclass(frozen=True)
class FormField:
    """One field.

    Attributes:
        kind: `yaml`: anything else, written as YAML on a line: `{name: dirichlet, alpha: 0.5}`.
        default: what holds where nothing is said.
        low, high: least and largest number.
        choices: of a choice.
        empty: whether it may be left without a value (null).
    """

    name: str
    kind: Kind
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    empty: bool = False


def fields_of(schema: Mapping[str, Any]) -> list[FormField]:
    """The fields of an object's schema, in its order."""
    return [_field(name, part) for name, part in schema.get("properties", {}).items()]


def _field(name: str, part: Mapping[str, Any]) -> FormField:
    options = [option for option in part.get("anyOf", ()) if option.get("type") != "null"]
    empty = "anyOf" in part and len(options) < len(part["anyOf"])
    one = options[0] if len(options) == 1 else part if not options else {}
    if "enum" in one and all(isinstance(choice, str) for choice in one["enum"]):
        return FormField(name, "choice", part.get("default"), choices=tuple(one["enum"]), empty=empty)
    kind = _SIMPLE.get(str(one.get("type")), "yaml")
    low, high = (_bound(one, word) for word in ("inimum", "aximum"))
    return FormField(name, kind, part.get("default"), low, high, empty=empty)


def _bound(part: Mapping[str, Any], word: str) -> float | None:
    """A bound, whether the value itself is allowed or not: the spec's own check says that in words."""
    found = part.get(f"m{word}", part.get(f"exclusiveM{word}"))
    return None if found is None else float(found)


def filled(field: FormField, value: Any) -> Any:
    """What a field's input holds, as a value of the document.

    Raises:
        BadInput: a line of YAML is none.
    """
    if value is None or value == "":
        return None
    if field.kind == "integer":
        return int(value) if float(value).is_integer() else value
    if field.kind == "number":
        return float(value)
    return parsing.load(str(value), field.name) if field.kind == "yaml" else value


def with_value(document: Mapping[str, Any], path: Sequence[str], value: Any, default: Any) -> dict[str, Any]:
    """A document with one value set; one that is the default is left out, and so are maps that become empty."""
    name, *rest = path
    inner = document.get(name)
    found = dict(document)
    if rest:
        value = with_value(inner if isinstance(inner, Mapping) else {}, rest, value, default)
        default = {}
    if value == default and type(value) is type(default):
        found.pop(name, None)
    else:
        found[name] = value
    return found
