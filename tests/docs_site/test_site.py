"""The site of docs/: a strict build without network access. The tests are skipped if MkDocs is not installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="MkDocs is not installed: `make docs` installs it")
from docs_site.hooks import GENERATED, expanded, generated, outward
from tests.e2e.browser import browser
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["a.md", "b.md", "dashboard.md", "how-to/x.md", "how-to/y.md"]
LOADED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["']?(https?:)?//""", re.IGNORECASE)


# ---- the navigation


@pytest.mark.parametrize(
    ("nav", "found"),
    [
        (["b.md", "*.md"], ["b.md", "a.md", "dashboard.md"]),
        ([{"How to": ["how-to/y.md", "how-to/*.md"]}], [{"How to": ["how-to/y.md", "how-to/x.md"]}]),
        ([{"Watch": ["dashboard*.md", "reports*.md"]}, "*.md"], [{"Watch": ["dashboard.md"]}, "a.md", "b.md"]),
        ([{"Watch": ["reports*.md"]}], []),
        (
            ["gone.md", {"Home": "a.md"}],
            ["gone.md", {"Home": "a.md"}],
        ),  # MkDocs itself reports a plain name without a page
    ],
    ids=str,
)
def test_a_navigation_pattern_adds_the_pages_that_are_not_named_elsewhere(nav: list[Any], found: list[Any]) -> None:
    assert expanded(nav, PAGES) == found


# ---- links out of docs/


@pytest.mark.parametrize(
    ("link", "repo", "shown"),
    [
        ("[`shared/spec/experiment.py`](../shared/spec/experiment.py)", None, "`shared/spec/experiment.py`"),
        ("[specs](../experiments/)", None, "specs (`experiments`)"),
        ("[specs](../experiments/)", "https://git.example/us/it/", "[specs](https://git.example/us/it/blob/main/experiments)"),
        ("[words](architecture.md#words)", None, "[words](architecture.md#words)"),
        ("![round](./round.svg)", None, "![round](./round.svg)"),
        ("[up](./specs.md)", None, "[up](./specs.md)"),
        ("```\n[`x`](../shared/spec/experiment.py)\n```", None, "```\n[`x`](../shared/spec/experiment.py)\n```"),
    ],
)  # fmt: skip
def test_a_link_to_code_becomes_its_name_or_its_page(link: str, repo: str | None, shown: str) -> None:
    assert outward(link, "page.md", repo) == shown


@pytest.mark.parametrize("link", ["[it](../shared/no_such.py)", "[it](../../elsewhere)"])
def test_a_broken_link_out_of_docs_stops_the_build(link: str) -> None:
    from mkdocs.exceptions import PluginError

    with pytest.raises(PluginError, match=r"page\.md"):
        outward(link, "page.md", None)


# ---- generated pages


def test_each_generated_page_says_in_its_first_sentence_what_it_is_for() -> None:
    found = generated()
    assert found.keys() == set(GENERATED)
    for name, text in found.items():
        title, _, rest = text.partition("\n\n")
        assert title.startswith("# "), name
        assert re.match(r"[A-Z][^|#]{30,}", rest), name


def test_each_page_says_in_its_first_sentence_what_it_is_for() -> None:
    """The home page, and those of algorithms, which begin with their paper, begin otherwise."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "algorithms"]
    assert len(pages) > 40
    for page in pages:
        first = page.read_text(encoding="utf-8").split("\n\n")[1]
        assert page.name == "index.md" or re.match(r"This (page|tutorial) |In this step ", first), page


# ---- the built site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    made = {path.relative_to(site) for path in site.rglob("*.html")}
    generated = {"404.html", *(Path(name).with_suffix(".html").name for name in GENERATED)}
    assert made == pages | set(map(Path, generated))
    home = (site / "index.html").read_text(encoding="utf-8")
    assert [
        page for page in sorted(pages) if f'href="{page.as_posix()}"' not in home and page.name != "index.html"
    ] == []


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    assert LOADED.search('<script async src="https://cdn.example/x.js">')
    assert LOADED.search("<link rel=stylesheet href=//fonts.example/css>")
    found = [path.name for path in site.rglob("*.html") if LOADED.search(path.read_text(encoding="utf-8"))]
    found += [
        path.name
        for path in site.rglob("*.css")
        if re.search(r"url\(['\"]?(https?:)?//", path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.e2e
def test_search_works_when_the_site_is_opened_from_the_disk(site: Path) -> None:
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "how-to" / "stragglers.html").as_uri())
        page.locator("input[data-md-component=search-query]").click()
        page.keyboard.type("quorum")
        found = page.locator(".md-search-result__link[href*='reliability.html']")
        found.first.wait_for(timeout=60_000)
        found.first.click()
        page.wait_for_url(lambda url: "reliability.html" in url)
        assert "quorum" in page.locator("article").inner_text().lower()
        assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
