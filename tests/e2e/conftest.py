"""A deployment without faults, whose layout differs from those with faults; a browser, and a window of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.e2e.browser import Visitor, browser
from tests.soak.deployment import Deployment

pytest.register_assert_rewrite("tests.e2e.real_faults")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the browser showed to the report of a failed test."""
    report = yield
    used = getattr(item, "funcargs", {}).values()
    visitor = next((each for each in used if isinstance(each, Visitor)), None)
    if report.when == "call" and report.failed and visitor is not None:
        try:
            account = visitor.account()
        except Exception as error:  # the page has crashed or hangs, which must not end the session
            account = f"the page cannot be read: {error!r}"
        report.sections.append(("the browser", account))
    return report


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment without faults, in which one agent hosts all devices; to stand idle would cost more than a start."""
    folder = tmp_path_factory.mktemp("reference") / "deployment"
    with Deployment(folder, edges=2, devices=4, agents=1, ttl_s=30, heartbeat_s=3) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser."""
    with browser() as found:
        yield found


@pytest.fixture
def visitor(chromium: Any, url: str) -> Iterator[Visitor]:
    """A window; the test fails if its pages had errors, or asked another site for anything."""
    found = Visitor(chromium, url)
    yield found
    assert found.complaints == []
    found.window.close()
