"""A browser that leaves before its answer causes no error; a missing answer to one that waits does."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import Message, Receive, Scope, Send

from cloud_server.dashboard.left_viewers import LeftViewers

SCOPE: Any = {"type": "http", "method": "GET", "path": "/", "headers": []}


async def request(*, leaves: bool, error: Exception | None = None) -> None:
    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        if error is not None:
            raise error

    async def dispatch(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    async def receive() -> Message:
        return {"type": "http.disconnect"} if leaves else {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pytest.fail(f"answered {message}")

    await LeftViewers(BaseHTTPMiddleware(app, dispatch))(SCOPE, receive, send)


async def test_a_browser_that_has_gone_causes_no_error() -> None:
    await request(leaves=True)


async def test_a_missing_answer_to_a_browser_that_waits_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="No response returned"):
        await request(leaves=False)


async def test_another_error_stays_one() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        await request(leaves=True, error=RuntimeError("broken"))
