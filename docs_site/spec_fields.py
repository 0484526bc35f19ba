"""The reference of a spec's fields as Markdown, from the JSON schema of `RunSpec`."""

from __future__ import annotations

from typing import Any

from docs_site.markdown import SCHEMAS, described, schema_section
from shared.spec.experiment import ExperimentSpec
from shared.spec.run import RunSpec

SPEC_FIELDS = "spec-fields.md"
_INTRODUCTION = """This page lists every field of a spec with its type, bounds and default; it is generated from the
code. [Specs](specs.md) explains what belongs together. `null` is no value. A record that has a `name` may be written
as the name alone, such as `data: mnist` for `data: {name: mnist}`."""


def schema() -> dict[str, Any]:
    """Returns the JSON schema of a spec, whose fields have all descriptions of the docstrings."""
    found = RunSpec.model_json_schema()
    _, said = described(ExperimentSpec.model_json_schema()["description"])
    _, more = described(found["description"])
    for field, words in {**said, **more}.items():
        found["properties"][field].setdefault("description", words)
    return found


def spec_fields_page() -> str:
    """Returns the page: the spec itself first, then the records in it by name."""
    spec = schema()
    parts = ["# Spec fields", _INTRODUCTION, schema_section("Spec", {**spec, "description": ""})]
    parts += [schema_section(name, found) for name, found in sorted(spec["$defs"].items())]
    return "\n\n".join(parts).replace(f"({SCHEMAS}#", "(#").replace("\n### ", "\n## ") + "\n"
