"""What all pages of the dashboard share."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from nicegui import Client, ui
from starlette.requests import Request

from cloud_server.dashboard.charts import LIGHT
from cloud_server.dashboard.layout import Dashboard, open_page
from shared.core.errors import BadInput

SCOPE = {"type": "http", "path": "/", "query_string": b"", "headers": [], "server": ("127.0.0.1", 8000)}


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_page_whose_browser_does_not_answer_is_light_and_dropped_once_the_viewer_has_left(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connected(*_: Any, **__: Any) -> None: ...

    async def unanswered(*_: Any, **__: Any) -> None:
        raise TimeoutError("JavaScript did not respond within 10.0 s")

    monkeypatch.setattr(Client, "connected", connected)
    monkeypatch.setattr(Client, "has_socket_connection", is_there)
    monkeypatch.setattr(ui, "run_javascript", unanswered)
    themes = []

    async def build() -> None:
        with Client(ui.page(""), request=Request(SCOPE)):
            async with open_page(Dashboard(cast("Any", None), has_login=False), "Runs") as page:
                themes.append(page.theme)

    built = asyncio.create_task(build())
    await asyncio.wait([built])
    # NiceGUI logs what else ends the task of a page, with its traceback.
    assert built.cancelled() is not is_there
    assert themes == [LIGHT] * is_there


async def test_an_error_that_an_action_does_not_expect_is_shown_to_the_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connected(*_: Any, **__: Any) -> None: ...

    async def answered(*_: Any, **__: Any) -> bool:
        return False

    shown = list[str]()
    monkeypatch.setattr(Client, "connected", connected)
    monkeypatch.setattr(ui, "run_javascript", answered)
    monkeypatch.setattr(ui, "notify", lambda text, **_: shown.append(text))
    with Client(ui.page(""), request=Request(SCOPE)) as client:
        async with open_page(Dashboard(cast("Any", None), has_login=False), "Runs"):
            client.handle_exception(ValueError("the shapes differ"))
            client.handle_exception(BadInput("0 is too small", field="lr"))
    assert shown == ["ValueError: the shapes differ (see the cloud's log)", "lr: 0 is too small"]
