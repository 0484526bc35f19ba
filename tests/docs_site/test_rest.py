"""The REST reference that is generated from OpenAPI."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cloud_server.app import create_app
from cloud_server.settings import CloudSettings
from docs_site.rest import METHODS, rest_page, schemas_page


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    return create_app(CloudSettings()).openapi()


def test_every_operation_and_every_schema_has_its_heading(api: dict[str, Any]) -> None:
    wanted = [f"{m.upper()} {path}" for path, found in api["paths"].items() for m in METHODS if m in found]
    assert sorted(re.findall(r"^### `(.*)`$", rest_page(api), re.MULTILINE)) == sorted(wanted)
    assert re.findall(r"^### (\w+)$", schemas_page(api), re.MULTILINE) == sorted(api["components"]["schemas"])


def test_every_link_to_a_schema_leads_to_one(api: dict[str, Any]) -> None:
    linked = set(re.findall(r"\(rest-schemas\.md#([\w-]+)\)", rest_page(api) + schemas_page(api)))
    assert linked <= {name.lower() for name in api["components"]["schemas"]}
    assert {"runinfo", "problem", "experimentspec"} <= linked


def test_an_operation_lists_its_parameters_and_answers(api: dict[str, Any]) -> None:
    page = rest_page(api)
    create = page.partition("### `POST /runs`\n")[2].partition("\n### ")[0]
    assert "Body: [NewRun](rest-schemas.md#newrun)" in create
    assert "| `201` | [RunInfo](rest-schemas.md#runinfo) |" in create
    assert "| `409` |" in create
    assert "| `422` |" not in create  # errors of all operations are listed once, above
    assert "| `422` | A field is wrong" in page.partition("## Errors")[2].partition("\n## ")[0]
    runs = page.partition("### `GET /runs`\n")[2].partition("\n### ")[0]
    assert "| `limit` | query | integer, from 1 to 1000 | `50` |" in runs


def test_requests_between_tiers_are_listed_last(api: dict[str, Any]) -> None:
    titles = re.findall(r"^## (.*)$", rest_page(api), re.MULTILINE)
    assert titles[0] == "Errors"
    assert titles[-1] == "Between tiers"


def test_a_schema_shows_types_bounds_defaults_and_its_docstring() -> None:
    schema = {
        "description": "A thing.\n\nAttributes:\n    share: of all,\n        at most 1.\n",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 9},
            "share": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1.0}, {"type": "null"}]},
            "kind": {"type": "string", "enum": ["a|b", "c"], "default": "c"},
            "more": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}},
            "by": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    }
    page = schemas_page({"components": {"schemas": {"Thing": schema}}})
    assert page.partition("### Thing\n\n")[2].splitlines() == [
        "A thing.",
        "",
        "| field | type | default |  |",
        "| --- | --- | --- | --- |",
        "| `name` | string, from 1 to 9 characters | **required** |  |",
        "| `share` | number, above 0 to 1 or null |  | of all, at most 1. |",
        '| `kind` | `"a&#124;b"`, `"c"` | `"c"` |  |',
        "| `more` | list of [Thing](rest-schemas.md#thing) |  |  |",
        "| `by` | object of integer |  |  |",
    ]
