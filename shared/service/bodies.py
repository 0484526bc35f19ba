"""Request and response bodies that may be large: read with a limit, sent in pieces, verified by a checksum."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.core.errors import Garbled, TooLarge, WireError
from shared.service.order_headers import CHECKSUM_HEADER, MEDIA_TYPE, SOCKET_HEADER, TESTING_HEADER
from shared.wire import codec

T = TypeVar("T")
CHUNK_BYTES = 2**20
"""Largest piece in which a body is sent; checksums of larger bodies are computed in a thread."""
MAX_TESTING_S = 1e9
"""Largest value of `TESTING_HEADER` that is believed."""


# ---- receiving


class Arriving:
    """A body that arrives piece by piece, in one buffer, each byte of which is written once if its length is known.

    Args:
        n_bytes: its length, if its sender said it.
        limit: most bytes of a body of unknown length.
    """

    def __init__(self, n_bytes: int | None, limit: int) -> None:
        self._n_bytes, self._most = n_bytes, limit if n_bytes is None else n_bytes
        self._buffer, self._end, self._crc = np.empty(n_bytes or 0, np.uint8).data, 0, 0

    def add(self, piece: bytes) -> None:
        """Takes the next piece.

        Raises:
            TooLarge: the body is longer than its sender said, or than the limit.
        """
        end = self._end + len(piece)
        if end > self._most:
            claimed = f"is longer than the {self._most} bytes that it claims"
            raise TooLarge(f"the body {f'has more than {self._most} bytes' if self._n_bytes is None else claimed}")
        if end > len(self._buffer):
            grown = np.empty(2 * end, np.uint8).data
            grown[: self._end] = self._buffer[: self._end]
            self._buffer = grown
        self._buffer[self._end : end] = piece
        self._end, self._crc = end, zlib.crc32(piece, self._crc)

    def whole(self, headers: Mapping[str, str], what: str) -> memoryview:
        """Returns the body once it has ended, checked against its length and the checksum in its headers.

        Raises:
            Garbled: it broke off, or was damaged on its way.
        """
        if self._n_bytes is not None and self._end != self._n_bytes:
            raise Garbled(f"the {what} broke off after {self._end} of {self._n_bytes} bytes")
        checksum = f"{self._crc:08x}"
        if headers.get(CHECKSUM_HEADER, checksum) != checksum:
            raise Garbled(f"the {what} does not match its checksum")
        return self._buffer[: self._end]


async def read_body(request: Request, limit: int) -> tuple[memoryview, str]:
    """Returns a request's body in one buffer, and its sha256, computed while the body arrives.

    Raises:
        TooLarge: it claims or has more than `limit` bytes; the excess is not read.
        WireError: it has no length.
        Garbled: it ends early, or does not have the checksum that its sender names.
    """
    length = content_length(request.headers)
    if length is None:
        raise WireError("a body needs a Content-Length")
    if length > limit:
        raise TooLarge(f"a body of {length} bytes, the limit is {limit}")
    arriving, sha256 = Arriving(length, limit), hashlib.sha256()
    async for chunk in request.stream():
        arriving.add(chunk)
        sha256.update(chunk)
    return arriving.whole(request.headers, "body"), sha256.hexdigest()


class Received:
    """A body and its parsed header, which can be taken once, so that only the code that works on them keeps them.

    Attributes:
        digest: sha256 of the body.
        n_bytes: size of the body.
    """

    def __init__(self, body: memoryview, digest: str) -> None:
        self.digest, self.n_bytes = digest, len(body)
        self._content: tuple[memoryview, codec.Header] | None = (body, codec.read_header(body))

    @property
    def header(self) -> codec.Header:
        """The parsed header; the body must not have been taken yet."""
        return self._present()[1]

    def take(self) -> tuple[memoryview, codec.Header]:
        """Returns the body and its header, and lets go of them.

        Raises:
            RuntimeError: they were taken before.
        """
        content, self._content = self._present(), None
        return content

    def _present(self) -> tuple[memoryview, codec.Header]:
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
        again: whether the order, if it is sent again, is new work, because its sender may refuse this answer.
    """

    body: codec.Body
    testing_s: float = 0.0
    socket_bytes: int = 0
    again: bool = False


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
