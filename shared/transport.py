"""Bodies between tiers: read into one buffer, sent without joining, retried where that is safe.

Every POST between tiers is idempotent (see `shared.once`), so that a broken connection is answered by asking again,
with capped back-off, until the deadline. A remote error comes back with the status, code and field that it had there.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import itertools
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpcore
import httpx
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.core.errors import (
    Busy,
    DeadlineExceeded,
    Garbled,
    Misdirected,
    SeatingUnknown,
    StrataError,
    TooLarge,
    TooSlow,
    Unreachable,
    WireError,
)
from shared.core.records import Record, Tensor
from shared.patience import patiently
from shared.wire import codec

R = TypeVar("R", bound=Record)
T = TypeVar("T")
Address = Callable[[], str]

MEDIA_TYPE = "application/x-safetensors"
PROBLEM_TYPE = "application/problem+json"
DIGEST_HEADER = "strata-digest"
SOCKET_HEADER = "strata-socket-bytes"
TESTING_HEADER = "strata-testing-s"
"""Beside an answer: wall seconds in which models were tested for it. No wall time stands in a body."""
MOST_TESTING_S = 1e9
CHUNK = 2**20
httpcore.AsyncHTTP11Connection.READ_NUM_BYTES = 2**18  # what uvloop reads at once; smaller pieces are copied off it
CONNECT_S = 5.0
SMALL_BYTES = 2**20
"""Largest JSON answer that is read."""
CHECKSUM_HEADER = "strata-crc32"
PASSING = (TooSlow, Busy, Misdirected)
"""Refusals that pass: the same is asked again, as after a broken connection."""
GARBLED_TIMES = 3
"""How often a body may be garbled or cut off, on either way, before its sender is given up."""
KNOWN: dict[str, type[StrataError]] = {kind.code: kind for kind in (SeatingUnknown, Garbled, *PASSING)}
"""What the asking side tells apart."""


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
    """A body until it is taken: whoever works on it is the only one to keep its memory."""

    def __init__(self, body: bytearray) -> None:
        self._body: bytearray | None = body

    def take(self) -> bytearray:
        """The body; once."""
        body, self._body = self._body, None
        if body is None:
            raise RuntimeError("the body was taken before")
        return body


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


# ---- the asking side


@dataclass(frozen=True)
class Reply(Generic[R]):
    """A decoded answer and what the socket carried (bodies only)."""

    record: R
    sent_bytes: int
    received_bytes: int
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Caller:
    """A client to other tiers: connections, the tier token and the largest answer that is read.

    `exchanged` is told of each record that was answered: what was asked for (the last part of the path), bytes of the
    body sent and received, wall seconds until then.
    """

    client: httpx.AsyncClient
    token: str | None = None
    max_bytes: int = 2**31
    exchanged: Callable[[str, int, int, float], None] = lambda what, sent, received, wall_s: None

    def headers(self) -> dict[str, str]:
        """The tier token, where there is one; answers are read as they come, so none may be compressed."""
        token = {"authorization": f"Bearer {self.token}"} if self.token else {}
        return {**token, "accept-encoding": "identity"}

    async def post_record(
        self,
        url: Address,
        body: codec.Body,
        kind: type[R],
        *,
        limit_s: float,
        who: str,
        headers: Mapping[str, str] | None = None,
        model: Mapping[str, Tensor] | None = None,
        n_seats: int = 1,
    ) -> Reply[R]:
        """POST an encoded record, decode the answer; ask again after broken connections until the limit.

        Args:
            url: where to; asked before each attempt, since who was restarted may be found elsewhere.
            body: the encoded record.
            kind: the answer's type.
            limit_s: wall seconds until the wait is given up.
            who: names the callee in errors.
            headers: further ones.
            model: the run's model, for checks while decoding.
            n_seats: of how many seats the answer may bring updates.

        Raises:
            DeadlineExceeded: nothing came in time.
            Garbled: what came, here or there, was not what had been sent, several times.
            WireError: what came is no such record.
            StrataError: what the other side answered.
        """
        sent = {**self.headers(), "content-type": MEDIA_TYPE, "content-length": str(body.n_bytes)}
        sent |= {DIGEST_HEADER: await _aside(body.n_bytes, body.digest), **(headers or {})}
        garbled = itertools.count(1)

        async def attempt(left: float) -> tuple[bytearray, Mapping[str, str]]:
            try:
                return await self._once(url(), body, sent)
            except Garbled as error:
                if next(garbled) >= GARBLED_TIMES:
                    raise
                raise Unreachable(error.detail) from None

        began, over = time.monotonic(), (httpx.TransportError, Unreachable, *PASSING)
        raw, got = await patiently(attempt, limit_s=limit_s, who=who, over=over)
        self.exchanged(url().rpartition("/")[2], body.n_bytes, len(raw), time.monotonic() - began)
        return Reply(codec.decode(kind, raw, model=model, n_seats=n_seats), body.n_bytes, len(raw), got)

    async def _once(self, url: str, body: codec.Body, headers: dict[str, str]) -> tuple[bytearray, Mapping[str, str]]:
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        request = self.client.build_request("POST", url, content=_stream(body), headers=headers, timeout=timeout)
        response = await self.client.send(request, stream=True, follow_redirects=False)
        try:
            if response.status_code != 200:
                raise remote_error(response.status_code, await _read(response, SMALL_BYTES), url)
            return await _read(response, self.max_bytes), response.headers
        finally:
            await response.aclose()

    async def call_json(self, method: str, url: str, payload: Any = None, *, limit_s: float, who: str) -> Any:
        """One small JSON request, not retried.

        Raises:
            DeadlineExceeded, Unreachable: naming who did not answer.
            WireError: what came is no JSON.
            StrataError: what the other side answered.
        """
        asked = self.client.stream(
            method, url, json=payload, headers=self.headers(), timeout=limit_s, follow_redirects=False
        )
        try:
            async with asyncio.timeout(limit_s), asked as response:
                status, body = response.status_code, await _read(response, SMALL_BYTES)
        except (TimeoutError, httpx.TimeoutException):
            raise DeadlineExceeded(f"{who} did not answer within {limit_s:g} s") from None
        except httpx.TransportError as error:
            raise Unreachable(f"{who}: {type(error).__name__}: {error}") from None
        if status >= 300:
            raise remote_error(status, body, url)
        try:
            return json.loads(bytes(body)) if body else None
        except (ValueError, RecursionError):
            raise WireError(f"{who} answered with no JSON") from None


async def _stream(body: codec.Body) -> AsyncIterator[bytes]:
    for piece in _pieces(body.parts):
        yield piece


async def _read(response: httpx.Response, limit: int) -> bytearray:
    size = _length(response.headers) or 0
    if size > limit:
        raise TooLarge(f"an answer of {size} bytes, the limit is {limit}")
    body, end, found = bytearray(size), 0, 0
    async for chunk in response.aiter_bytes():
        if end + len(chunk) > limit:
            raise TooLarge(f"an answer of more than {limit} bytes")
        body[end : end + len(chunk)] = chunk
        end += len(chunk)
        found = zlib.crc32(chunk, found)
    if size and end != size:
        raise Garbled(f"the answer broke off after {end} of {size} bytes")
    checksum = f"{found:08x}"
    if response.headers.get(CHECKSUM_HEADER, checksum) != checksum:
        raise Garbled("the answer is not what its checksum says")
    return body


def remote_error(status: int, body: bytearray, url: str) -> StrataError:
    """The error that the other side answered, with its own status, code and field."""
    try:
        problem = json.loads(bytes(body))
        detail, code, field = str(problem["detail"])[:2000], str(problem["code"])[:64], problem.get("field")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        detail, code, field = f"{url} answered with status {status}", "remote", None
    field = str(field)[:200] if field else None
    error = KNOWN.get(code, StrataError)(detail, field=field)
    # What is no error there, a redirect say, is one here: the other side spoke out of turn.
    error.status, error.code = status if status >= 400 else Unreachable.status, code
    return error


def inside(address: str | None, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    """Whether an address lies in one of the networks."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in networks if network.version == parsed.version)
