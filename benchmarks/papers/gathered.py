"""The pages by name, and `docs/papers.md`: the verdicts of all."""

from __future__ import annotations

import importlib
from typing import cast

from benchmarks.papers.measured import Kept
from benchmarks.papers.page import DOCS, Page, replaced, rows_of

NAMES = ("bofl", "dtpfl", "lafl_cpn", "fedser", "es_afl")


def page_of(name: str) -> Page:
    """The page of a paper."""
    return cast(Page, importlib.import_module(f"benchmarks.papers.{name}").PAGE)


def gathered() -> str:
    """The text of `docs/papers.md` with the claims of all pages and their verdicts.

    Raises:
        NotFound: it has no place for a page.
    """
    parts = {}
    for name in NAMES:
        page = page_of(name)
        runs = page.known(Kept.read(name))
        rows = [(claim.text, claim.paper, *claim.cells(runs)) for claim in page.claims]
        parts[name] = rows_of(("claim", "the paper", "ours", "verdict"), rows)
    return replaced(DOCS / "papers.md", parts)
