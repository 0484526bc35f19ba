"""The reference of what a spec may name, as Markdown: algorithms, data sets, models, losses, metrics and policies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs_site.markdown import SCHEMAS, schema_section, table
from shared.federation.plugin_checks import KINDS
from shared.federation.registry import ALGORITHMS, all_algorithms
from strata.plugin_listing import known

NAMES = "names.md"
PLURALS = {"loss": "losses", "selection policy": "selection policies"}
_PAGES = Path(__file__).resolve().parents[1] / "docs" / "algorithms"
_INTRODUCTION = """This page lists everything that a spec may name and that comes with StrataFL, with its parameters; it
is generated from the code. [Plug-ins](how-to/plugins.md) bring more. `strata algorithms`, `strata models`, `strata
datasets` and `strata partitions` print the same with yours."""


def names_page() -> str:
    """Returns the page: a table for each kind, and a section for each algorithm."""
    parts = ["# Names and parameters", _INTRODUCTION]
    for kind in KINDS:
        if kind is not ALGORITHMS:
            rows = ((f"`{each.name}`", each.description, each.parameters) for each in known(kind))
            named = f"Field `{kind.field}` of a spec."
            parts += [
                f"## {PLURALS.get(kind.word, f'{kind.word}s').capitalize()}",
                named,
                table(("name", "what it is", "parameters"), rows),
            ]
    parts += ["## Algorithms", "Field `algorithm` of a spec; each name leads to its page.", *_algorithms()]
    return "\n\n".join(parts) + "\n"


def _algorithms() -> Iterator[str]:
    for name, algorithm in all_algorithms().items():
        schema: dict[str, Any] = algorithm.params.model_json_schema()
        page = f"[{algorithm.paper}](algorithms/{name}.md)" if (_PAGES / f"{name}.md").is_file() else algorithm.paper
        if not schema.get("properties"):
            yield f"### {name}\n\n{page}. No parameters."
            continue
        heading, rest = schema_section(name, schema).split("\n\n", 1)
        yield f"{heading}\n\n{page}.\n\n{rest}".replace(f"({SCHEMAS}#", "(spec-fields.md#")
