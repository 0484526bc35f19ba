"""Form fields from a JSON schema, and the entered values as a document (a spec)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml

from shared.core import parsing
from shared.core.errors import BadInput

Kind = Literal["text", "integer", "number", "switch", "choice", "yaml"]
_BOUNDS = {
    "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below",
}  # fmt: skip
_SIMPLE: Mapping[str, Kind] = {"string": "text", "integer": "integer", "number": "number", "boolean": "switch"}


@dataclass(frozen=True)
class FormField:
    """One field of a form.

    Attributes:
        kind: the input; `yaml` is one line of YAML, for every other type: `{name: dirichlet, alpha: 0.5}`.
        default: the value if none is entered.
        bounds: those of a number, in words.
        choices: the options of kind `choice`; of kind `yaml`, names that the line may be.
        nullable: whether null is allowed.
        help: what the field is, from the model's own documentation.
    """

    name: str
    kind: Kind
    default: Any = None
    bounds: str = ""
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
    """The descriptions of fields in a docstring, each on one line.

    They stand in its `Attributes` section, or are all of it: `mu: weight of the term; temperature: T.`
    """
    summary, _, section = inspect.cleandoc(document).partition("\nAttributes:\n")
    texts: dict[str, str] = {}
    names: list[str] = []
    if not section and re.match(r"\w+: ", summary):
        section = "\n".join(f"    {part.rstrip('.')}." for part in re.split(r"; (?=\w+: )", " ".join(summary.split())))
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
    return FormField(name, kind, part.get("default"), _bounds(schema), nullable=nullable)


def _bounds(schema: Mapping[str, Any]) -> str:
    """The bounds of a number in words."""
    if "minimum" in schema and "maximum" in schema:
        return f"{_shown(schema['minimum'])} to {_shown(schema['maximum'])}"
    return ", ".join(f"{word} {_shown(schema[key])}" for key, word in _BOUNDS.items() if key in schema)


def _shown(bound: float) -> str:
    return f"{bound:,.16g}"


def help_line(field: FormField) -> str:
    """The help below a field: what the field is, what an empty one means, and its bounds, as plain text."""
    words = re.sub(r"None(?: means(?: that)?|:) ", "empty: ", field.help)
    default = _without_nulls(field.default)
    empty = f"Empty: {flow_yaml(default)}." if field.kind == "yaml" and default else ""
    bounds = f"{field.bounds}." if field.bounds else ""
    parts = (*re.split(r"(?<=\.) ", words), bounds, empty)
    return " ".join(f"{part[:1].upper()}{part[1:]}" for part in parts if part).replace("`", "")


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}


def flow_yaml(value: Any) -> str:
    """A value as one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("...").strip()


def parse_value(field: FormField, value: Any) -> Any:
    """The value of an input as a value of the document; None if the input is empty.

    Raises:
        BadInput: it is not a number, or the line of a `yaml` field is not valid YAML.
    """
    if value is None or value == "":
        return None
    if field.kind in ("integer", "number"):
        return _number(field, str(value))
    return parsing.load(str(value), field.name) if field.kind == "yaml" else value


def _number(field: FormField, text: str) -> float:
    """The number that a text says; in a field of integers, `1e3` is one."""
    try:
        number = float(text)
        return int(number) if field.kind == "integer" and number.is_integer() else number
    except ValueError:
        raise BadInput(f"{field.name} is not a number") from None


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
