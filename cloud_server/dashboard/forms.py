"""Form fields from a JSON schema, and the entered values as a document (a spec)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from shared.core import parsing
from shared.core.errors import BadInput

Kind = Literal["text", "integer", "number", "switch", "choice", "yaml"]
_SIMPLE: Mapping[str, Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "switch"}


@dataclass(frozen=True)
class FormField:
    """One field of a form.

    Attributes:
        kind: the input; `yaml` is one line of YAML, for every other type: `{name: dirichlet, alpha: 0.5}`.
        default: the value if none is entered.
        low, high: bounds of a number; None means unbounded.
        choices: the options of kind `choice`.
        nullable: whether null is allowed.
        help: what the field is, from the model's own documentation.
    """

    name: str
    kind: Kind
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    nullable: bool = False
    help: str = ""


def fields_of(schema: Mapping[str, Any], *documents: str | None) -> list[FormField]:
    """The fields of an object schema, in its order.

    Args:
        schema: the JSON schema. A field without a description has that of the schema's own, or of
        documents: docstrings of the models from which it inherits.
    """
    texts: dict[str, str] = {}
    for document in (*documents, schema.get("description")):
        texts |= described(document or "")
    parts = schema.get("properties", {}).items()
    return [replace(_field(name, part), help=part.get("description") or texts.get(name, "")) for name, part in parts]


def described(document: str) -> dict[str, str]:
    """The descriptions of fields in the `Attributes` section of a docstring, each on one line."""
    _, _, section = inspect.cleandoc(document).partition("\nAttributes:\n")
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if found := re.match(r" {4}(\w+(?:, \w+)*): (.*)", line):
            names = found[1].split(", ")
            texts |= dict.fromkeys(names, found[2])
        elif line.startswith(" " * 8):
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
        elif line:
            break
    return texts


def _field(name: str, part: Mapping[str, Any]) -> FormField:
    options = [option for option in part.get("anyOf", ()) if option.get("type") != "null"]
    nullable = "anyOf" in part and len(options) < len(part["anyOf"])
    schema = options[0] if len(options) == 1 else part if not options else {}
    if "enum" in schema and all(isinstance(choice, str) for choice in schema["enum"]):
        return FormField(name, "choice", part.get("default"), choices=tuple(schema["enum"]), nullable=nullable)
    kind = _SIMPLE.get(str(schema.get("type")), "yaml")
    low, high = _bound(schema, "minimum", "exclusiveMinimum"), _bound(schema, "maximum", "exclusiveMaximum")
    return FormField(name, kind, part.get("default"), low, high, nullable=nullable)


def _bound(schema: Mapping[str, Any], inclusive: str, exclusive: str) -> float | None:
    """A bound, inclusive or exclusive: validation of the spec reports the difference."""
    bound = schema.get(inclusive, schema.get(exclusive))
    return None if bound is None else float(bound)


def parse_value(field: FormField, value: Any) -> Any:
    """The value of an input as a value of the document; None if the input is empty.

    Raises:
        BadInput: the line of a `yaml` field is not valid YAML.
    """
    if value is None or value == "":
        return None
    if field.kind == "integer":
        return int(value) if float(value).is_integer() else value
    if field.kind == "number":
        return float(value)
    return parsing.load(str(value), field.name) if field.kind == "yaml" else value


def with_value(document: Mapping[str, Any], path: Sequence[str], value: Any, default: Any) -> dict[str, Any]:
    """The document with the value at a path; default values and maps that become empty are left out."""
    name, *rest = path
    inner = document.get(name)
    changed = dict(document)
    if rest:
        value = with_value(inner if isinstance(inner, Mapping) else {}, rest, value, default)
        default = {}
    if value == default and type(value) is type(default):
        changed.pop(name, None)
    else:
        changed[name] = value
    return changed


def whole_number(name: str, value: float | None, low: int, high: int) -> int:
    """The value of a number input that takes whole numbers.

    Raises:
        BadInput: it is empty, not whole, or not from `low` to `high`; names the input.
    """
    if value is None or not low <= value <= high or int(value) != value:
        raise BadInput(f"{name}: a whole number from {low:,} to {high:,} is needed", field=name)
    return int(value)
