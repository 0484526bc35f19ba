"""The REST reference as Markdown, from an app's OpenAPI document: pages that need no script and no other host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from docs_site.markdown import SCHEMAS, Json, default_of, line, schema_section, table, type_of

REST = "rest.md"
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
    parts += [schema_section(name, schema) for name, schema in sorted(api["components"]["schemas"].items())]
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
        parts.append(table(("parameter", "in", "type", "default", ""), map(_parameter, parameters)))
    if body := operation.get("requestBody"):
        parts.append("Body: " + " or ".join(_contents(body["content"])))
    parts.append(table(("status", "answer"), _answers(operation["responses"], everywhere)))
    return "\n\n".join(parts)


def _parameter(parameter: Json) -> tuple[str, ...]:
    schema = parameter["schema"]
    default = "**required**" if parameter.get("required") else default_of(schema)
    return f"`{parameter['name']}`", parameter["in"], type_of(schema), default, line(parameter.get("description", ""))


def _contents(content: Json) -> Iterator[str]:
    for media, found in content.items():
        schema = found.get("schema", {})
        if media.endswith("json"):
            yield type_of(schema)
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
    return "\n\n".join(["## Errors", _PROBLEMS, table(("status", "when"), rows)])
