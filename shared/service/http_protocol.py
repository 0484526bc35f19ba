"""HTTP/1.1 that gives slow clients up.

uvicorn waits without end for a request's head or body that trickles in, and for a client that does not read, and it
sets no bound to a head. Here each of these waits has one, at one timer a request: chunks of a body cost nothing.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared.core.errors import Busy, HeadTooLarge, StrataError, TooSlow
from shared.service.problems import problem_of

HEAD_BYTES = 2**16
"""Largest head of a request, roughly: what arrives in one piece is not cut."""
KEEP_ALIVE_S = 60


@dataclass(frozen=True)
class Limits:
    """How long a client is waited for, and how many connections there may be at a time.

    Attributes:
        head_s: until the head of a request is there.
        body_s: until its body is there, plus a second for every `body_rate` bytes that it claims.
        body_rate: in bytes a second.
        unread_s: until the client takes some of an answer that fills the buffers.
        connections: open at a time.
    """

    head_s: float
    body_s: float
    body_rate: int
    unread_s: float
    connections: int


class Protocol(HttpToolsProtocol):
    """One connection. `_owed` is the timer of what its client owes: a head, or a body.

    Without that timer the client owes nothing: it waits for its answer, or is idle under uvicorn's keep-alive timer.
    """

    def __init__(self, limits: Limits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits
        self._owed: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_head, self._head_bytes = True, 0

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, or say that it is one too many."""
        super().connection_made(transport)
        self._expect_head(self.limits.head_s)
        if len(self.connections) > self.limits.connections:
            self._refuse(Busy(f"this process takes {self.limits.connections} connections at a time"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is owed any more."""
        self._settle()
        self._forgive_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came. The first bytes after a whole request, whatever they are, begin the next head."""
        if self.transport.is_closing():
            return
        if self._owed is None:
            self._expect_head(self.limits.head_s)
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self._refuse(HeadTooLarge(f"the head of a request has at most {HEAD_BYTES} bytes"))

    # ---- the request

    def on_headers_complete(self) -> None:
        """The head is there; now the body is owed."""
        super().on_headers_complete()
        self._in_head = False
        self._owe(self._body_s(), self._body_is_late)

    def on_message_complete(self) -> None:
        """The request is there."""
        super().on_message_complete()
        self._settle()
        # Answered before its body had come: uvicorn's own timer is gone by now. Who asks for a websocket has no cycle.
        if self.cycle is not None and self.cycle.response_complete:
            self._expect_head(KEEP_ALIVE_S)

    def on_response_complete(self) -> None:
        """Who was refused before the body had come may send its rest, for a while."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        elif self._owed is not None and not self._in_head and self.cycle.response_complete:
            self._owe(self.limits.body_s, self._close)

    def _body_s(self) -> float:
        claimed = next((value for name, value in self.headers if name == b"content-length"), b"0")
        return self.limits.body_s + int(claimed) / self.limits.body_rate

    def handle_websocket_upgrade(self) -> None:
        """A connection that becomes a websocket owes nothing any more; its own pings notice who is gone."""
        self._settle()
        self._forgive_unread()
        super().handle_websocket_upgrade()

    # ---- what is owed

    def _expect_head(self, within_s: float) -> None:
        self._in_head, self._head_bytes = True, 0
        self._owe(within_s, self._head_is_late)

    def _owe(self, within_s: float, otherwise: Callable[[], None]) -> None:
        self._settle()
        self._owed = self.loop.call_later(within_s, otherwise)

    def _settle(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
            self._owed = None

    def _head_is_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_head(self.limits.head_s)  # a stray line end behind the request that is being answered
        else:
            self._close()

    def _body_is_late(self) -> None:
        self._refuse(TooSlow(f"the body did not come within {self._body_s():.0f} s"))

    # ---- the end

    def _refuse(self, error: StrataError) -> None:
        """Say why, unless something else is being said, and close."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline):
            self.transport.write(_plain(problem_of(error)))
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self._close()

    def _close(self) -> None:
        """Close once what was written is taken, or after a while."""
        self._settle()
        self.transport.close()
        self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection."""
        self._close()

    # ---- a client that does not read

    def pause_writing(self) -> None:
        """The buffers are full: the client is given a while to take something."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """It took something."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._forgive_unread()

    def _expect_reading(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.unread_s, self.transport.abort)

    def _forgive_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _plain(answer: Response) -> bytes:
    """An answer as the bytes on the wire; nothing follows it."""
    head = [f"HTTP/1.1 {answer.status_code} {http.HTTPStatus(answer.status_code).phrase}".encode()]
    head += [name + b": " + value for name, value in [*answer.raw_headers, (b"connection", b"close")]]
    return b"\r\n".join([*head, b"", bytes(answer.body)])
