"""A request from elsewhere, run through an application of this process as if it had come to a port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from shared.core.errors import WireError
from shared.identity.names import Peer
from shared.service.peers import PEER
from shared.service.reverse.records import AnswerHead, RequestHead, as_bytes, as_text

_FRAMING = (b"content-length", b"transfer-encoding")


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
    _n_read: int = 0

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
            "headers": self._headers(),
            "client": self.client,
            "server": None,
            "state": {PEER: self.peer},
        }
        await app(scope, self._receive, self._send)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        """Those of the request, with the length that its body is held to, as a server's parser holds it."""
        own = [(name, text) for name, text in as_bytes(self.head.headers) if name not in _FRAMING]
        return [*own, (b"content-length", str(self.head.n_bytes).encode())]

    async def _chunk(self) -> bytes | None:
        """The next bytes of the body, None after the last ones.

        Raises:
            WireError: they are more than the request was announced with.
        """
        chunk = await anext(self.body, None)
        self._n_read += len(chunk or b"")
        if self._n_read > self.head.n_bytes:
            raise WireError(f"the body of a request is longer than the {self.head.n_bytes} bytes announced")
        return chunk

    async def _receive(self) -> Message:
        if self._has_body:
            try:
                chunk = await self._chunk()
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
