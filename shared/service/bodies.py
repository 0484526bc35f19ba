"""Request and response bodies that may be large: read with a limit, sent in pieces."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.core.errors import Garbled, TooLarge, WireError
from shared.service.order_headers import CHECKSUM_HEADER, DIGEST_HEADER, MEDIA_TYPE, TESTING_HEADER
from shared.wire import codec

T = TypeVar("T")
MOST_TESTING_S = 1e9
CHUNK = 2**20


# ---- the receiving side


async def read_body(request: Request, limit: int) -> tuple[bytearray, str]:
    """The request's body in one preallocated buffer, and its sha256, which grows while the rest is on its way.

    Raises:
        TooLarge: it claims or has more than `limit` bytes; what exceeds is not read.
        WireError: it has no length.
        Garbled: it breaks off early, or is not what its sender says.
    """
    claimed = _length(request.headers)
    if claimed is None:
        raise WireError("a body needs a Content-Length")
    if claimed > limit:
        raise TooLarge(f"a body of {claimed} bytes, the limit is {limit}")
    body, end, sha256 = bytearray(claimed), 0, hashlib.sha256()
    async for chunk in request.stream():
        if end + len(chunk) > claimed:
            raise TooLarge(f"the body is longer than the {claimed} bytes that it claims")
        body[end : end + len(chunk)] = chunk
        end += len(chunk)
        sha256.update(chunk)
    if end != claimed:
        raise Garbled(f"the body broke off after {end} of {claimed} bytes")
    digest = sha256.hexdigest()
    if request.headers.get(DIGEST_HEADER, digest) != digest:
        raise Garbled("the body is not what its digest says")
    return body, digest


class Received:
    """A received body and its parsed header, until the work on it takes both and so alone decides when they are freed.

    Attributes:
        digest: sha256 of the body.
        n_bytes: size of the body.
    """

    def __init__(self, body: bytearray, digest: str) -> None:
        self.digest, self.n_bytes = digest, len(body)
        self._content: tuple[bytearray, codec.Header] | None = (body, codec.read_header(body))

    @property
    def header(self) -> codec.Header:
        """The parsed header; the body must not have been taken yet."""
        return self._present()[1]

    def take(self) -> tuple[bytearray, codec.Header]:
        """The body and its header; once."""
        content, self._content = self._present(), None
        return content

    def _present(self) -> tuple[bytearray, codec.Header]:
        if self._content is None:
            raise RuntimeError("the body was taken before")
        return self._content


async def receive(request: Request, limit: int) -> Received:
    """Reads the body of a request, as `read_body` does, and parses its header.

    Raises:
        TooLarge, Garbled: as `read_body`.
        WireError: the body has no length or no header.
    """
    return Received(*await read_body(request, limit))


def testing_s(headers: Mapping[str, str]) -> float:
    """Wall seconds of `TESTING_HEADER`; 0 where it names none that can be."""
    try:
        found = float(headers.get(TESTING_HEADER, "0"))
    except ValueError:
        return 0.0
    return found if 0 <= found <= MOST_TESTING_S else 0.0


def _length(headers: Mapping[str, str]) -> int | None:
    """The Content-Length, if it is a number; of a very long number what is surely too large."""
    claimed = headers.get("content-length", "")
    return int(claimed[:18]) if claimed.isascii() and claimed.isdigit() else None


class BodyResponse(Response):
    """An encoded record as a response, part by part."""

    media_type = MEDIA_TYPE

    def __init__(self, body: codec.Body, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"content-length": str(body.n_bytes), **(headers or {})}, media_type=MEDIA_TYPE)
        self.body_of = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts."""
        self.headers[CHECKSUM_HEADER] = await _aside(self.body_of.n_bytes, self.body_of.checksum)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in _pieces(self.body_of.parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _aside(n_bytes: int, work: Callable[[], T]) -> T:
    """Work that takes as long as its bytes are many: beside the loop, where that is worth a thread."""
    return await asyncio.to_thread(work) if n_bytes > CHUNK else work()


def _pieces(parts: tuple[bytes | memoryview, ...]) -> Iterator[Any]:
    for part in parts:
        view = memoryview(part)
        for begin in range(0, len(view), CHUNK):
            yield view[begin : begin + CHUNK]


@dataclass(frozen=True)
class EncodedAnswer:
    """An encoded answer to an order.

    Attributes:
        body: the answer.
        testing_s: wall seconds spent on testing models for it.
        socket_bytes: of an edge's answer, bytes that its connections to the agents carried for it.
    """

    body: codec.Body
    testing_s: float = 0.0
    socket_bytes: int = 0
