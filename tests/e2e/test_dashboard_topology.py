"""The topology page in a real browser while runs train: what it says, and that a refresh takes no click away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.browser import Visitor
from tests.e2e.test_dashboard import started

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
REFRESHES_MS = 2500
"""A time in which the page is refreshed at least once."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[str]:
    process, found = started(tmp_path_factory.mktemp("topology"))
    yield found
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


@pytest.fixture
def run(url: str) -> Iterator[str]:
    """A run that trains: each refresh of the page finds new rounds."""
    spec = {"name": "long", "data": {"name": "digits", "n_train": 300}, "num_rounds": 100_000, "num_devices": 4}
    found = httpx.post(f"{url}/runs", json={"spec": spec}, timeout=30).json()["run"]
    yield found
    httpx.post(f"{url}/runs/{found}/stop", timeout=30).raise_for_status()


def test_a_refresh_takes_neither_the_click_nor_the_focus(visitor: Visitor, run: str) -> None:
    page = visitor.go("/")
    page.get_by_role("link", name="long: running").wait_for()
    page.get_by_text("As a table").click()
    device = page.get_by_role("button", name="1", exact=True)
    device.wait_for()
    device.focus()
    page.wait_for_timeout(REFRESHES_MS)
    assert page.evaluate("document.activeElement.textContent") == "1"
    device.scroll_into_view_if_needed()
    box = device.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.wait_for_timeout(REFRESHES_MS)
    page.mouse.up()
    page.get_by_role("dialog").get_by_role("button", name="Take offline").wait_for()
