"""The REST reference as Markdown, from an app's OpenAPI document: pages that need no script and no other host."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]
REST, SCHEMAS = "rest.md", "rest-schemas.md"
METHODS = ("get", "post", "put", "patch", "delete")
INTERNAL = "tiers"
"""The tag of operations that only tiers call."""


def rest_page(api: Json) -> str:
    """The page with every operation by tag: description, parameters, body, responses and specific errors."""
    tags: dict[str, list[str]] = {}
    everywhere = _errors_of_all(api)
    for path, operations in api["paths"].items():
        for method in METHODS:
            if method in operations:
                tag = operations[method].get("tags", ["other"])[0]
                tags.setdefault(tag, []).append(_operation(method, path, operations[method], everywhere))
    ordered = sorted(tags, key=lambda tag: tag == INTERNAL)
    parts = ["# REST reference", _INTRODUCTION.format(**api["info"]), _problems(everywhere)]
    for tag in ordered:
        parts += [f"## {'Between tiers' if tag == INTERNAL else tag.capitalize()}", *tags[tag]]
    return "\n\n".join(parts) + "\n"


def schemas_page(api: Json) -> str:
    """The page with every schema: its fields with their types, bounds and defaults."""
    parts = ["# Schemas", f"Schemas of the request and response bodies of the [REST API]({REST})."]
    parts += [_schema(name, schema) for name, schema in sorted(api["components"]["schemas"].items())]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """Generated from the OpenAPI document of version {version}, which a running cloud serves as
`/openapi.json`. Bodies are JSON; unknown fields are rejected. If tokens are set, a user sends the API token as
`Authorization: Bearer`, a tier sends the tier token ([security](security.md))."""
_PROBLEMS = f"""An error is a [Problem]({SCHEMAS}#problem): `application/problem+json` with a `code` and,
if one field caused the error, the `field`. Any operation may return"""


# ---- operations


def _operation(method: str, path: str, operation: Json, everywhere: Mapping[str, str]) -> str:
    parts = [f"### `{method.upper()} {path}`", operation.get("description") or operation.get("summary", "")]
    if parameters := operation.get("parameters"):
        parts.append(_table(("parameter", "in", "type", "default", ""), map(_parameter, parameters)))
    if body := operation.get("requestBody"):
        parts.append("Body: " + " or ".join(_contents(body["content"])))
    parts.append(_table(("status", "answer"), _answers(operation["responses"], everywhere)))
    return "\n\n".join(parts)


def _parameter(parameter: Json) -> tuple[str, ...]:
    schema = parameter["schema"]
    default = "**required**" if parameter.get("required") else _default(schema)
    return f"`{parameter['name']}`", parameter["in"], _type(schema), default, _line(parameter.get("description", ""))


def _contents(content: Json) -> Iterator[str]:
    for media, found in content.items():
        schema = found.get("schema", {})
        if media.endswith("json"):
            yield _type(schema)
        else:
            yield f"`{media}`"


def _answers(responses: Json, everywhere: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for status, response in responses.items():
        if everywhere.get(status) == response["description"]:
            continue
        shown = " or ".join(_contents(response.get("content", {}))) if status < "400" else response["description"]
        yield f"`{status}`", shown or "nothing"


def _errors_of_all(api: Json) -> dict[str, str]:
    """Errors that most operations may return (status and meaning), which the page lists once."""
    counted: dict[tuple[str, str], int] = {}
    operations = [operation for path in api["paths"].values() for name, operation in path.items() if name in METHODS]
    for operation in operations:
        for status, response in operation["responses"].items():
            if status >= "400":
                key = status, response["description"]
                counted[key] = counted.get(key, 0) + 1
    return {status: why for (status, why), number in sorted(counted.items()) if number > len(operations) / 2}


def _problems(everywhere: Mapping[str, str]) -> str:
    rows = [(f"`{status}`", why) for status, why in everywhere.items()]
    return "\n\n".join(["## Errors", _PROBLEMS, _table(("status", "when"), rows)])


# ---- schemas


def _schema(name: str, schema: Json) -> str:
    about, said = _described(schema.get("description", ""))
    required = schema.get("required", ())
    rows = [
        (f"`{field}`", _type(found), "**required**" if field in required else _default(found), said.get(field, ""))
        for field, found in schema.get("properties", {}).items()
    ]
    columns = ("field", "type", "default", "") if any(row[-1] for row in rows) else ("field", "type", "default")
    table = _table(columns, [row[: len(columns)] for row in rows]) if rows else _type(schema)
    return "\n\n".join(filter(None, [f"### {name}", about, table]))


def _described(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's text, and the descriptions of fields in its `Attributes` section."""
    about, _, attributes = text.partition("\nAttributes:\n")
    said: dict[str, str] = {}
    last = ""
    for line in attributes.splitlines():
        found = re.match(r" {4}(\w+): (.*)", line)
        if found:
            last = found[1]
            said[last] = found[2]
        elif last and line.startswith(" " * 8):
            said[last] += " " + line.strip()
    return about.strip(), {field: _line(words) for field, words in said.items()}


def _type(schema: Json) -> str:
    """A type in words, with links to its schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({SCHEMAS}#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(_type(part) for part in schema[key])
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    return _plain_type(schema)


def _plain_type(schema: Json) -> str:
    kind = schema.get("type", "any value")
    if kind == "array":
        parts = schema.get("prefixItems")
        inner = ", ".join(map(_type, parts)) if parts else _type(schema.get("items", {}))
        return f"list of ({inner})" if parts or " or " in inner else f"list of {inner}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"object of {_type(values)}" if isinstance(values, Mapping) else "object"
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


def _default(schema: Json) -> str:
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else ""


# ---- tables


def _line(text: str) -> str:
    return " ".join(text.split())


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")
