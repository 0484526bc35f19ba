"""MkDocs' hooks: the navigation's patterns, pages made from the code, and links from docs/ to the code.

MkDocs calls them by their names (`hooks` in mkdocs.yml); `make docs` runs it from the repository's root.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from cloud_server.app import create_app
from cloud_server.settings import CloudSettings
from docs_site.bounds import BOUNDS, bounds_page
from docs_site.cli import CLI, cli_page
from docs_site.codes import CODES, codes_page
from docs_site.experiments import CATALOGUE, catalogue_page
from docs_site.markdown import SCHEMAS
from docs_site.names import NAMES, names_page
from docs_site.notebook import NOTEBOOK, PAGE
from docs_site.notebook import page as notebook_page
from docs_site.rest import REST, rest_page, schemas_page
from docs_site.settings import SETTINGS, settings_page
from docs_site.spec_fields import SPEC_FIELDS, spec_fields_page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<to>\.\.?/[^)\s]*)\)")
ASSETS = ("site.css", "iframe-worker.js")
CHANGELOG = "changelog.md"
GENERATED = (REST, SCHEMAS, CLI, SPEC_FIELDS, NAMES, SETTINGS, BOUNDS, CODES, CATALOGUE, CHANGELOG, PAGE)
"""Pages that are made when the site is built."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the patterns in the navigation by the existing pages."""
    pages = [path.relative_to(config.docs_dir).as_posix() for path in sorted(Path(config.docs_dir).rglob("*.md"))]
    config.nav = expanded(config.nav or [], [*pages, *GENERATED])
    return config


def expanded(nav: list[Any], pages: list[str]) -> list[Any]:
    """A navigation with each pattern (`algorithms/*.md`) replaced by the pages that match and are not named elsewhere.

    A pattern without a match is removed, and so is an empty section; a plain name stays even if its page is missing, so
    that MkDocs reports it.
    """
    named = set(_leaves(nav))
    return _filled(nav, [page for page in pages if page not in named])


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [leaf for item in (nav.values() if isinstance(nav, dict) else nav) for leaf in _leaves(item)]


def _filled(nav: list[Any], free: list[str]) -> list[Any]:
    found: list[Any] = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            matching = [page for page in free if re.fullmatch(re.escape(item).replace(r"\*", "[^/]*"), page)]
            free[:] = [page for page in free if page not in matching]
            found += matching
        elif isinstance(item, dict):
            ((title, inner),) = item.items()
            inner = _filled(inner, free) if isinstance(inner, list) else inner
            if inner:
                found.append({title: inner})
        else:
            found.append(item)
    return found


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, and the site's style sheet and script."""
    made = generated()
    made |= {name: (Path(__file__).parent / name).read_text(encoding="utf-8") for name in ASSETS}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def generated() -> dict[str, str]:
    """Returns the pages that come from the code, from the notebook of examples/, and from files beside docs/."""
    api = create_app(CloudSettings()).openapi()
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return {
        REST: rest_page(api),
        SCHEMAS: schemas_page(api),
        CLI: cli_page(),
        SPEC_FIELDS: spec_fields_page(),
        NAMES: names_page(),
        SETTINGS: settings_page(),
        BOUNDS: bounds_page(),
        CODES: codes_page(),
        CATALOGUE: catalogue_page(),
        CHANGELOG: changes.replace("](docs/", "]("),
        PAGE: notebook_page(json.loads(NOTEBOOK.read_text(encoding="utf-8"))),
    }


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ into links to the repository, or into plain text if its URL is not known."""
    return outward(markdown, page.file.src_uri, config.repo_url)


def outward(markdown: str, page: str, repo_url: str | None) -> str:
    """The page with each link out of docs/ rewritten; code blocks stay as they are.

    Args:
        page: path of the page in docs/.
        repo_url: URL of the repository, if it is known.

    Raises:
        PluginError: a link points to nothing in the repository.
    """

    def rewritten(match: re.Match[str]) -> str:
        text, (to, _, _) = match["text"], match["to"].partition("#")
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), to))
        if path.startswith("docs/"):
            return match[0]
        if path.startswith("..") or not (ROOT / path).exists():
            raise PluginError(f"{page}: {match['to']} points to nothing in the repository")
        if repo_url:
            return f"[{text}]({repo_url.rstrip('/')}/blob/main/{path})"
        return text if path in text.replace("`", "").rstrip("/") else f"{text} (`{path}`)"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(rewritten, part) for part in parts)
