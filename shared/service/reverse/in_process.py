"""A request from elsewhere, run through an application of this process as if it had come to a port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from shared.identity.names import Peer
from shared.service.peers import PEER
from shared.service.reverse.records import AnswerHead, RequestHead, as_bytes, as_text


@dataclass
class Exchange:
    """One request and its answer.

    Attributes:
        head: of the request.
        body: of the request, as it arrives.
        client: address of who sent it.
        peer: whose certificate that node showed.
        withdrawn: set when nobody waits for the answer any more; for the application the connection is closed then.
        error: why the request's body did not arrive; for the application the connection is closed then, too.
        answer: head of the answer; None until the application has sent it.
        parts: body of the answer.
    """

    head: RequestHead
    body: AsyncIterator[bytes]
    client: tuple[str, int]
    peer: Peer | None
    withdrawn: asyncio.Event
    error: Exception | None = None
    answer: AnswerHead | None = None
    parts: list[bytes] = field(default_factory=list)
    _has_body: bool = True

    async def run(self, app: ASGIApp) -> None:
        """Runs the request."""
        path, _, query = self.head.target.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.head.method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": "",
            "headers": as_bytes(self.head.headers),
            "client": self.client,
            "server": None,
            "state": {PEER: self.peer},
        }
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._has_body:
            try:
                chunk = await anext(self.body, None)
            except Exception as error:
                self.error, self._has_body = error, False
                return {"type": "http.disconnect"}
            self._has_body = chunk is not None
            return {"type": "http.request", "body": chunk or b"", "more_body": self._has_body}
        if self.error is None:
            await self.withdrawn.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answer = AnswerHead(status=message["status"], headers=as_text(message["headers"]))
        elif message.get("body"):
            self.parts.append(message["body"])
