"""Request and response bodies that may be large: read with a limit, sent in pieces, verified by a checksum."""

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
from shared.service.order_headers import CHECKSUM_HEADER, DIGEST_HEADER, MEDIA_TYPE, SOCKET_HEADER, TESTING_HEADER
from shared.wire import codec

T = TypeVar("T")
CHUNK_BYTES = 2**20
"""Largest piece in which a body is sent; checksums of larger bodies are computed in a thread."""
MAX_TESTING_S = 1e9
"""Largest value of `TESTING_HEADER` that is believed."""


# ---- receiving


async def read_body(request: Request, limit: int) -> tuple[bytearray, str]:
    """Returns a request's body in one buffer, and its sha256, computed while the body arrives.

    Raises:
        TooLarge: it claims or has more than `limit` bytes; the excess is not read.
        WireError: it has no length.
        Garbled: it ends early, or does not have the digest that its sender names.
    """
    length = content_length(request.headers)
    if length is None:
        raise WireError("a body needs a Content-Length")
    if length > limit:
        raise TooLarge(f"a body of {length} bytes, the limit is {limit}")
    body, end, sha256 = bytearray(length), 0, hashlib.sha256()
    async for chunk in request.stream():
        if end + len(chunk) > length:
            raise TooLarge(f"the body is longer than the {length} bytes that it claims")
        body[end : end + len(chunk)] = chunk
        end += len(chunk)
        sha256.update(chunk)
    if end != length:
        raise Garbled(f"the body broke off after {end} of {length} bytes")
    digest = sha256.hexdigest()
    if request.headers.get(DIGEST_HEADER, digest) != digest:
        raise Garbled("the body does not match its digest")
    return body, digest


class Received:
    """A body and its parsed header, which can be taken once, so that only the code that works on them keeps them.

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
        """Returns the body and its header, and lets go of them.

        Raises:
            RuntimeError: they were taken before.
        """
        content, self._content = self._present(), None
        return content

    def _present(self) -> tuple[bytearray, codec.Header]:
        if self._content is None:
            raise RuntimeError("the body was taken before")
        return self._content


async def receive(request: Request, limit: int) -> Received:
    """Returns the body of a request, read by `read_body`, with its parsed header.

    Raises:
        TooLarge, Garbled: as `read_body`.
        WireError: the body has no length or no header.
    """
    return Received(*await read_body(request, limit))


def content_length(headers: Mapping[str, str]) -> int | None:
    """Returns the Content-Length, None if it is not a number; of a very long number its first 18 digits."""
    text = headers.get("content-length", "")
    return int(text[:18]) if text.isascii() and text.isdigit() else None


def testing_s(headers: Mapping[str, str]) -> float:
    """Returns the wall seconds in `TESTING_HEADER`; 0 if it is absent or not a plausible number."""
    try:
        found = float(headers.get(TESTING_HEADER, "0"))
    except ValueError:
        return 0.0
    return found if 0 <= found <= MAX_TESTING_S else 0.0


def socket_bytes(headers: Mapping[str, str]) -> int:
    """Returns the bytes in `SOCKET_HEADER`; 0 if it is absent or not a count of at most 15 digits."""
    text = headers.get(SOCKET_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0


# ---- answering


@dataclass(frozen=True)
class EncodedAnswer:
    """An encoded answer to an order, and what was measured while it was made.

    Attributes:
        body: the encoded record.
        testing_s: wall seconds in which models were evaluated for it.
        socket_bytes: bytes of the bodies that an edge exchanged with its agents for it.
    """

    body: codec.Body
    testing_s: float = 0.0
    socket_bytes: int = 0


class BodyResponse(Response):
    """An encoded record as a response, sent piece by piece with its checksum."""

    media_type = MEDIA_TYPE

    def __init__(self, body: codec.Body, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"content-length": str(body.n_bytes), **(headers or {})}, media_type=MEDIA_TYPE)
        self._encoded = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends head and pieces."""
        self.headers[CHECKSUM_HEADER] = await computed(self._encoded.n_bytes, self._encoded.checksum)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in pieces(self._encoded.parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def computed(n_bytes: int, work: Callable[[], T]) -> T:
    """Returns what a function of so many bytes returns; a large one runs in a thread beside the event loop."""
    return await asyncio.to_thread(work) if n_bytes > CHUNK_BYTES else work()


def pieces(parts: tuple[bytes | memoryview, ...]) -> Iterator[Any]:
    """Yields the parts of a body in pieces of at most `CHUNK_BYTES`."""
    for part in parts:
        view = memoryview(part)
        for begin in range(0, len(view), CHUNK_BYTES):
            yield view[begin : begin + CHUNK_BYTES]
