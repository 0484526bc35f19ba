"""`make screenshots`: takes the pictures of the dashboard that docs/dashboard.md shows.

It starts a topology of its own, trains a run in which some devices are slow and some updates are refused, opens the
dashboard in a Chromium, and takes a picture of the topology and of the run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import strata

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SPEC = ROOT / "experiments" / "bofl_digits.yaml"
CHANGES = {"num_rounds": 12, "algorithm.params.margin": "literal"}
EDGES, DEVICES = 5, 20
"""As the spec needs; one device an agent."""
CHROMIUMS = ("chromium-headless-shell", "chromium", "google-chrome")
"""Programs that will do."""
WIDTH, HEIGHT = 1280, 860
"""Pixels of the window; the picture of a run shows two windows, one below the other."""
LIMIT_S = 300.0
SHOWN_MS = 60_000
"""Longest wait until a page is drawn."""
DRAWN_MS = 2_000
"""Wait until charts have moved into place."""


def main(into: Path = DOCS) -> None:
    """Write `dashboard_topology.png` and `dashboard_run.png`."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        browser() as chromium,
        strata.local(edges=EDGES, devices=DEVICES, agents=DEVICES, runs_dir=scratch) as cloud,
    ):
        run = cloud.run(SPEC, **CHANGES).wait(LIMIT_S, progress=False)
        take(chromium, f"{cloud.url}/ui/", into / "dashboard_topology.png", HEIGHT)
        take(chromium, f"{cloud.url}/ui/runs/{run.id}", into / "dashboard_run.png", 2 * HEIGHT)


@contextmanager
def browser() -> Iterator[Any]:
    """Yields a Chromium.

    Raises:
        SystemExit: none is on the path.
    """
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if path is None:
        raise SystemExit("no chromium on the path: install it, for example by apt-get install chromium")
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def take(chromium: Any, url: str, picture: Path, height: int) -> None:
    """Open a page of the dashboard, wait until it is drawn, and write the window as a picture of few colours."""
    page = chromium.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
    page.goto(url)
    page.get_by_role("heading", level=1).wait_for(timeout=SHOWN_MS)
    page.wait_for_timeout(DRAWN_MS)
    page.screenshot(path=picture)
    page.close()
    small(picture)


def small(picture: Path) -> None:
    """Reduce a picture to 256 colours, which halves its file and more."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(256).save(picture, optimize=True)


if __name__ == "__main__":
    main()
