"""Bodies between tiers: read into one buffer, sent without joining, retried where that is safe.

Every POST between tiers is idempotent (see `shared.once`), so that a broken connection is answered by asking again,
with capped back-off, until the deadline. A remote error comes back with the status, code and field that it had there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpcore
import httpx

from shared.core.errors import (
    Busy,
    DeadlineExceeded,
    Garbled,
    Misdirected,
    PlacementUnknown,
    StrataError,
    TooLarge,
    TooSlow,
    Unreachable,
    WireError,
)
from shared.core.records import Record, Tensor
from shared.service.bodies import _aside, _length, _pieces
from shared.service.order_headers import CHECKSUM_HEADER, DIGEST_HEADER, MEDIA_TYPE
from shared.service.retry import retry
from shared.wire import codec

R = TypeVar("R", bound=Record)
T = TypeVar("T")
Address = Callable[[], str]
httpcore.AsyncHTTP11Connection.READ_NUM_BYTES = 2**18  # what uvloop reads at once; smaller pieces are copied off it
CONNECT_S = 5.0
POLL_S = 0.5
"""Wall seconds between two checks of a peer whose answer is awaited."""
SMALL_BYTES = 2**20
"""Largest JSON answer that is read."""
PASSING = (TooSlow, Busy, Misdirected)
"""Refusals that pass: the same is asked again, as after a broken connection."""
GARBLED_TIMES = 3
"""How often a body may be garbled or cut off, on either way, before its sender is given up."""
KNOWN: dict[str, type[StrataError]] = {kind.code: kind for kind in (PlacementUnknown, Garbled, *PASSING)}
"""What the asking side tells apart."""


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
        raw, got = await retry(attempt, limit_s=limit_s, who=who, over=over)
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


async def while_alive(request: Coroutine[Any, Any, T], check: Callable[[], None], *, poll_s: float = POLL_S) -> T:
    """The answer of a peer, awaited for as long as the peer is alive. The request ends with the wait.

    Args:
        request: is awaited in a task of its own, and cancelled when `check` raises or the wait is cancelled.
        check: is called every `poll_s` seconds; raises the reason why the wait ends, such as `Lost` or `Cancelled`.
        poll_s: wall seconds between two checks.

    Raises:
        StrataError: what `check` or the request raised.
    """
    task = asyncio.create_task(request)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=poll_s)
            if not task.done():
                check()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


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
