"""HTTP/1.1 with limits: uvicorn's protocol, which ends connections of clients that are too slow or too many.

uvicorn's and Starlette's own options do not give these limits (`tests/security/test_slow_clients.py`):

- Time for a head: uvicorn's `timeout_keep_alive` runs only after an answer and until the next byte.
- Size of a head: `h11_max_incomplete_event_size` is for h11, the parser in pure Python; httptools has no bound.
- Time for a body, and for an answer that the client does not read: neither has an option.
- Number of connections: `limit_concurrency` refuses requests, as plain text; connections that send nothing stay open.

Each wait takes one timer a request; the chunks of a body set none.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shared.core.errors import Busy, Forbidden, HeadTooLarge, StrataError, TooSlow
from shared.identity.names import Peer, peer_of
from shared.service.peers import PEER
from shared.service.problems import problem_of

HEAD_BYTES = 2**16
"""Largest head of a request; one that arrives in a single read may be larger."""
KEEP_ALIVE_S = 60
"""Seconds for which an idle connection stays open."""


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
        head_s: seconds until the head of a request is complete.
        body_s: seconds until its body is complete, plus one for every `body_rate` bytes that it claims.
        body_rate: bytes a second.
        unread_s: seconds until the client reads some of an answer that fills the buffers.
        connections: open at a time.
    """

    head_s: float
    body_s: float
    body_rate: int
    unread_s: float
    connections: int


class Protocol(HttpToolsProtocol):
    """One connection. `_deadline` is the timer of the head or body that its client has yet to send.

    Without that timer nothing is due: the client waits for its answer, or is idle under uvicorn's keep-alive timer.
    """

    def __init__(self, limits: Limits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = limits
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_head, self._head_bytes = True, 0

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts a connection, or refuses one too many."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER: _peer(transport)}
        self._expect_head(self.limits.head_s)
        if len(self.connections) > self.limits.connections:
            self._refuse(Busy(f"this process takes {self.limits.connections} connections at a time"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timers."""
        self._clear_deadline()
        self._clear_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads data. The first bytes after a whole request, whatever they are, begin the next head."""
        if self.transport.is_closing():
            return
        if self._deadline is None:
            self._expect_head(self.limits.head_s)
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self._refuse(HeadTooLarge(f"the head of a request has at most {HEAD_BYTES} bytes"))

    # ---- the request

    def on_headers_complete(self) -> None:
        """Starts the timer of the body."""
        super().on_headers_complete()
        self._in_head = False
        self._set_deadline(self._body_s(), self._body_is_late)

    def on_message_complete(self) -> None:
        """Stops the timer of the body."""
        super().on_message_complete()
        self._clear_deadline()
        # Answered before its body was complete: uvicorn's own timer is gone by now. A websocket's request has no cycle.
        if self.cycle is not None and self.cycle.response_complete:
            self._expect_head(KEEP_ALIVE_S)

    def on_response_complete(self) -> None:
        """Lets a client that was answered early send the rest of its body, for `body_s` seconds."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        elif self._deadline is not None and not self._in_head and self.cycle.response_complete:
            self._set_deadline(self.limits.body_s, self._close)

    def _body_s(self) -> float:
        claimed = next((value for name, value in self.headers if name == b"content-length"), b"0")
        return self.limits.body_s + int(claimed) / self.limits.body_rate

    def handle_websocket_upgrade(self) -> None:
        """Stops the timers: a websocket has pings of its own."""
        self._clear_deadline()
        self._clear_unread()
        super().handle_websocket_upgrade()

    # ---- deadlines

    def _expect_head(self, within_s: float) -> None:
        self._in_head, self._head_bytes = True, 0
        self._set_deadline(within_s, self._head_is_late)

    def _set_deadline(self, within_s: float, otherwise: Callable[[], None]) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(within_s, otherwise)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_is_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_head(self.limits.head_s)  # a stray line end behind the request that is being answered
        else:
            self._close()

    def _body_is_late(self) -> None:
        self._refuse(TooSlow(f"the body did not come within {self._body_s():.0f} s"))

    # ---- the end

    def _refuse(self, error: StrataError) -> None:
        """Answers with the error, unless another answer is under way, and closes."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline):
            self.transport.write(_bytes_of(problem_of(error)))
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self._close()

    def _close(self) -> None:
        """Closes once the client has read what was written, or after `unread_s` seconds."""
        self._clear_deadline()
        self.transport.close()
        self._expect_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection."""
        self._close()

    # ---- a client that does not read

    def pause_writing(self) -> None:
        """Starts the timer of an unread answer: the buffers are full."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Stops it: the client has read some."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._clear_unread()

    def _expect_reading(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.unread_s, self.transport.abort)

    def _clear_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _peer(transport: asyncio.Transport) -> Peer | None:
    """Returns who is on the other side; None without TLS, without a certificate, or with one that names no node."""
    certificate = transport.get_extra_info("peercert")
    try:
        return peer_of(certificate) if certificate else None
    except Forbidden:
        return None


def _bytes_of(answer: Response) -> bytes:
    """Returns an answer as bytes, the last of its connection."""
    head = [f"HTTP/1.1 {answer.status_code} {http.HTTPStatus(answer.status_code).phrase}".encode()]
    head += [name + b": " + value for name, value in [*answer.raw_headers, (b"connection", b"close")]]
    return b"\r\n".join([*head, b"", bytes(answer.body)])
