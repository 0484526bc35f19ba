"""What generated pages share: tables, and JSON schemas with their fields' types, bounds, defaults and descriptions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]
SCHEMAS = "rest-schemas.md"
"""The page to whose headings types link."""


def schema_section(name: str, schema: Json) -> str:
    """Returns a heading with a schema's description and the table of its fields."""
    about, said = described(schema.get("description", ""))
    required = schema.get("required", ())
    rows = [
        (
            f"`{field}`",
            type_of(found),
            "**required**" if field in required else default_of(found),
            line(found.get("description") or said.get(field, "")),
        )
        for field, found in schema.get("properties", {}).items()
    ]
    columns = ("field", "type", "default", "") if any(row[-1] for row in rows) else ("field", "type", "default")
    fields = table(columns, [row[: len(columns)] for row in rows]) if rows else type_of(schema)
    return "\n\n".join(filter(None, [f"### {name}", about, fields]))


def described(text: str) -> tuple[str, dict[str, str]]:
    """Returns a docstring's text, and the descriptions of fields in its `Attributes` section."""
    about, _, attributes = text.partition("\nAttributes:\n")
    entries: list[tuple[str, str]] = []
    for row in attributes.splitlines():
        if found := re.match(r" {4}(\w+(?:, \w+)*): (.*)", row):
            entries.append((found[1], found[2]))
        elif entries and row.startswith(" " * 8):
            entries[-1] = entries[-1][0], f"{entries[-1][1]} {row}"
    return about.strip(), {name: line(words) for names, words in entries for name in names.split(", ")}


def type_of(schema: Json) -> str:
    """Returns a type in words, with links to its schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({SCHEMAS}#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(type_of(part) for part in schema[key])
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    return _plain_type(schema)


def _plain_type(schema: Json) -> str:
    kind = schema.get("type", "any value")
    if kind == "array":
        parts = schema.get("prefixItems")
        inner = ", ".join(map(type_of, parts)) if parts else type_of(schema.get("items", {}))
        return f"list of ({inner})" if parts or " or " in inner else f"list of {inner}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"object of {type_of(values)}" if isinstance(values, Mapping) else "object"
    return f"{kind}{_bounds(schema)}"


def _bounds(schema: Json) -> str:
    """Bounds of a number or a text, in words."""
    words = {
        "minimum": "from {}",
        "exclusiveMinimum": "above {}",
        "maximum": "to {}",
        "exclusiveMaximum": "below {}",
        "minLength": "from {}",
        "maxLength": "to {}",
    }
    found = [text.format(_number(schema[key])) for key, text in words.items() if key in schema]
    unit = " characters" if schema.get("type") == "string" else ""
    return f", {' '.join(found)}{unit}" if found else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e16 else repr(value)


def default_of(schema: Json) -> str:
    """Returns the default of a field as JSON, an empty text without one."""
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else ""


# ---- tables


def line(text: str) -> str:
    """Returns a text as one line."""
    return " ".join(text.split())


def table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table; cells may have links, and no line ends."""
    every = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in every)


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")
