"""A real Chromium for tests of the dashboard: it has no network and records the errors of pages."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tests.waits import HANG_S

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The one without windows takes a quarter less of the processors' time."""
NO_BROWSER = "no chromium on the path: apt-get install chromium-headless-shell"


@contextmanager
def browser() -> Iterator[Any]:
    """Yields Debian's Chromium; skips the test if it or Playwright is not installed."""
    if CHROMIUM is None:
        pytest.skip(NO_BROWSER)
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            chromium.close()


class Visitor:
    """One browser window. It records console errors of pages, pages loaded anew, and their requests to other sites.

    It also keeps what the page and the cloud told each other last, for the report of a failed test.

    Args:
        chromium: see `browser`.
        url: the address of the cloud.
        width: the width of the window in pixels.
    """

    def __init__(self, chromium: Any, url: str, width: int = 1280, *, dark: bool = False) -> None:
        self.url = url.rstrip("/")
        scheme = "dark" if dark else "light"
        self.window = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.window.set_default_timeout(1000 * HANG_S)
        self.page = self.window.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)
        self.messages: deque[str] = deque(maxlen=1000)
        self.page.on("websocket", self._connected)

    def _said(self, message: Any) -> None:
        if message.type == "error" or message.text.startswith("reloading because"):  # NiceGUI's words
            self.complaints.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.complaints.append(f"asks {request.url}")

    def _connected(self, socket: Any) -> None:
        def keep(what: str, text: object = "") -> None:
            self.messages.append(f"{time.strftime('%X')} {what} {text!s:.120}")

        keep("opened", socket.url)
        socket.on("framesent", lambda text: keep("sent", text))
        socket.on("framereceived", lambda text: keep("received", text))
        socket.on("close", lambda _: keep("closed"))

    def account(self) -> str:
        """What is on the page, what it and the cloud told each other last, and the runs that the cloud has."""
        try:
            runs = [
                {name: run[name] for name in ("run", "name", "status", "reason", "rounds")}
                for run in httpx2.get(f"{self.url}/runs", timeout=60).json()["runs"]
            ]
        except (httpx2.HTTPError, LookupError, ValueError) as error:
            runs = [{"error": repr(error)}]
        text = " | ".join(self.page.locator("body").inner_text().split("\n"))
        lines = [f"{time.strftime('%X')} {self.page.url}", *self.complaints, f"{text:.900}"]
        return "\n".join([*lines, *[*self.messages][-20:], *map(str, runs[:4])])

    def go(self, path: str) -> Any:
        """Open a page of the dashboard and wait until it is built."""
        self.page.goto(f"{self.url}/ui{path}")
        self.page.get_by_role("heading", level=1).wait_for()
        return self.page

    def charts(self) -> list[dict[str, Any]]:
        """Returns the ECharts options of the page's charts, from top to bottom."""
        found: list[dict[str, Any]] = self.page.evaluate(
            "[...document.querySelectorAll('.nicegui-echart')].map(e => getElement(Number(e.id.slice(1))).chart)"
            ".filter(c => c).map(c => JSON.parse(JSON.stringify(c.getOption())))"
        )
        return found

    def columns(self, number: int = 0) -> list[str]:
        """Returns the names of a table's columns, without icons; tables are numbered from the top."""
        found: list[str] = (
            self.page.locator(".q-table")
            .nth(number)
            .get_by_role("columnheader")
            .evaluate_all(
                "all => all.map(e => [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join(''))"
            )
        )
        return found

    def is_wider_than_its_window(self) -> bool:
        """Whether the page needs horizontal scrolling."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth + 1"))
