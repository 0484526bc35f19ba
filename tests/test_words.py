"""Texts that users read say what the field says; words of the code alone occur there as names only, in backticks."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloud_server.app import create_app
from cloud_server.settings import CloudSettings
from docs_site.cli import cli_page
from docs_site.codes import codes_page
from docs_site.experiments import catalogue_page
from docs_site.names import names_page
from docs_site.notebook import NOTEBOOK
from docs_site.rest import rest_page, schemas_page
from docs_site.settings import settings_page
from docs_site.spec_fields import spec_fields_page

pytestmark = pytest.mark.integration  # with all files
ROOT = Path(__file__).parents[1]
PACKAGES = ("shared", "cloud_server", "edge_server", "device_agent", "strata", "docs_site")
PRIVATE = re.compile(
    r"\b(?:(?:re)?seat(?:s|ed|ing)?|visit(?:s|ed|ing)?|waves?|placements?|rosters?"
    r"|homes?(?! folder| computer|'s Wi-Fi))\b",
    re.IGNORECASE,
)
"""Words that only the code uses; docs/concepts.md names their places in the field."""
NAMES = re.compile(r"average_every: visit|arrow keys, Home and End|: seat, edge;|: visits, uploads, other")
"""Values of fields and labels, and keys of a keyboard."""
KEYS = re.compile(r"(?:\|population\|)?(?:home|seat) ")
KEYED = (
    "shared/federation/population/",
    "shared/federation/context.py",
    "shared/federation/data_faults.py",
    "shared/simulation/profile_sampling.py",
    "edge_server/rounds/simulated_clock.py",
    "cloud_server/dashboard/node_dialogs.py",
    "cloud_server/dashboard/topology_nodes.py",
)
"""Where such words begin keys: names of random streams and digests, which must not change, and of marks on a page."""


def _constants(tree: ast.AST) -> Iterator[tuple[str, ast.Constant]]:
    """A module's texts with their places, but its docstrings: those that users read are on pages of the reference."""
    names = {id(each) for found in ast.walk(tree) if isinstance(found, ast.Expr) for each in [found.value]}
    for found in ast.walk(tree):
        if isinstance(found, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id == "__all__" for to in found.targets
        ):
            names |= {id(each) for each in ast.walk(found)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in names:
            yield each.value, each


def _headings(tree: ast.AST) -> set[int]:
    """The ids of the constants that name columns and axes."""
    made = ("Table", "Column", "Axis")
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    named = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id in made)
    given = (each for call in named for each in (*call.args, *(keyword.value for keyword in call.keywords)))
    return {id(each) for each in given}


def _is_sentence(text: str) -> bool:
    """Whether a constant is more than a name of a field, a key or a path; a capital begins a heading."""
    return " " in text or bool(re.fullmatch(r"[A-Z][a-z]+", text))


def messages(package: str) -> dict[str, str]:
    """Errors, log lines, help, headings and labels in the code of a package, by file and line."""
    return {
        f"{path.relative_to(ROOT)}:{at.lineno}: {text}": text
        for path in sorted((ROOT / package).rglob("*.py"))
        for code in [path.read_text(encoding="utf-8")]
        if PRIVATE.search(code)  # else it need not be parsed
        for tree in [ast.parse(code)]
        for headings in [_headings(tree)]
        for text, at in _constants(tree)
        if (_is_sentence(text) or id(at) in headings)
        and not (KEYS.match(text) and path.relative_to(ROOT).as_posix().startswith(KEYED))
    }


def prose(page: str) -> str:
    """A page without its code, its links' targets and its fenced blocks."""
    text = re.sub(r"^```.*?^```|^(?: {4}|\t).*?$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", "", text)


def found(text: str) -> list[str]:
    """The sentences, or lines, of a text in which a private word stands."""
    if not PRIVATE.search(text):
        return []
    return [line.strip() for line in NAMES.sub("", prose(text)).splitlines() if PRIVATE.search(line)]


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_and_labels(package: str) -> None:
    assert [where for where, text in messages(package).items() if found(text)] == []


def _api() -> str:
    api = create_app(CloudSettings()).openapi()
    return rest_page(api) + schemas_page(api)


def _notebook() -> str:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


REFERENCE: dict[str, Callable[[], str]] = {
    "REST API": _api,
    "command line": cli_page,
    "spec fields": spec_fields_page,
    "names": names_page,
    "settings": settings_page,
    "codes": codes_page,
    "experiments": catalogue_page,
    "notebook": _notebook,
}


@pytest.mark.parametrize("kind", REFERENCE)
def test_reference(kind: str) -> None:
    assert found(REFERENCE[kind]()) == []


TEMPLATES = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in (".html", ".js")]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates(path: Path) -> None:
    assert found(path.read_text(encoding="utf-8")) == []


PAGES = sorted({"README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))})


@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str) -> None:
    assert found((ROOT / page).read_text(encoding="utf-8")) == []
