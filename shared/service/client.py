"""The HTTP client of tiers: records and small JSON, with the tier token, limits and retries.

Every POST of a record is idempotent (`shared.service.idempotency`), so a broken connection is answered by repeating the
request, with capped back-off, until a deadline. An error of the other side keeps its status, code and field.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpcore2
import httpx2

from shared.core.bounds import LARGEST_EDGES
from shared.core.clocks import written
from shared.core.errors import (
    DeadlineExceeded,
    Garbled,
    TooLarge,
    Unreachable,
    WireError,
)
from shared.core.records import Record
from shared.core.tensor_records import Tensor
from shared.identity.names import Identity, Peer, peer_of
from shared.identity.node_keys import NodeKeys
from shared.service.bodies import Arriving, computed, content_length, pieces
from shared.service.body_limit import JSON_BYTES
from shared.service.order_headers import CHECKSUM_HEADER, MEDIA_TYPE
from shared.service.peers import PEER
from shared.service.protocol import check_answer, say_protocol
from shared.service.public_trust import PublicTrust
from shared.service.remote_errors import TRANSIENT, remote_error
from shared.service.retry import retry
from shared.wire import codec

R = TypeVar("R", bound=Record)
T = TypeVar("T")
Address = Callable[[], str]
httpcore2.AsyncHTTP11Connection.READ_NUM_BYTES = 2**18  # what uvloop reads at once; smaller pieces would be copied
CONNECT_S = 5.0
"""Longest wait for a connection."""
POLL_S = 0.5
"""Wall seconds between two checks of a peer whose answer is awaited."""
GARBLED_TIMES = 3
"""How often a body may be garbled or cut off, in either direction, before the request fails."""


def tier_client(
    transport: httpx2.AsyncBaseTransport | None = None,
    keys: NodeKeys | None = None,
    mounts: Mapping[str, httpx2.AsyncBaseTransport] | None = None,
) -> httpx2.AsyncClient:
    """Returns the HTTP client of a tier; the way to other tiers is never the environment's choice.

    With `trust_env` httpx2 would send each request, and the tier token with it, to `HTTP_PROXY` or `ALL_PROXY`, for
    127.0.0.1 too, and would trust the authorities of `SSL_CERT_FILE`.

    Args:
        transport: replaces the network in tests.
        keys: of the node, where nodes show certificates.
        mounts: transports for other addresses than those of the network, by the beginning of the address.
    """
    # As many as there are edges: to close what is surplus, the pool looks at all connections, at each answer.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=LARGEST_EDGES)
    verify = keys.client if keys else PublicTrust()
    hooks: dict[str, list[Callable[..., Any]]] = {"request": [say_protocol], "response": [check_answer]}
    return httpx2.AsyncClient(
        transport=transport,
        follow_redirects=False,
        limits=limits,
        trust_env=False,
        verify=verify,
        mounts=mounts,
        event_hooks=hooks,
    )


@dataclass(frozen=True)
class Reply(Generic[R]):
    """A decoded answer, and the bytes of the two bodies."""

    record: R
    sent_bytes: int
    received_bytes: int
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Caller:
    """A client of other tiers.

    Attributes:
        client: holds the connections.
        token: the tier token, where one is set.
        max_bytes: largest answer that is read.
        keys: of this node, where nodes show certificates: then each peer must show that of the identity that is called.
        revoked: serial numbers of certificates that are refused.
        exchanged: called after each record that was answered, with the last part of the path, the bytes of the bodies
            sent and received, and the wall seconds that it took.
    """

    client: httpx2.AsyncClient
    token: str | None = None
    max_bytes: int = 2**31
    keys: NodeKeys | None = None
    revoked: Container[str] = ()
    exchanged: Callable[[str, int, int, float], None] = lambda what, sent, received, wall_s: None

    def headers(self) -> dict[str, str]:
        """Returns the headers of every request; they forbid compression, since answers are read as they come."""
        token = {"authorization": f"Bearer {self.token}"} if self.token else {}
        return {**token, "accept-encoding": "identity"}

    async def post_record(
        self,
        url: Address,
        body: codec.Body,
        kind: type[R],
        *,
        limit_s: float,
        peer: Identity,
        headers: Mapping[str, str] | None = None,
        model: Mapping[str, Tensor] | None = None,
        n_seats: int = 1,
    ) -> Reply[R]:
        """POSTs an encoded record and decodes the answer; repeats the request after broken connections.

        Args:
            url: returns the address; called before each attempt, since a restarted tier may have a new one.
            body: the encoded record.
            kind: the answer's type.
            limit_s: wall seconds for all attempts together.
            peer: the other side.
            headers: further headers.
            model: the run's model, for checks while decoding.
            n_seats: number of seats of which the answer may hold updates.

        Raises:
            DeadlineExceeded: no answer arrived in time.
            Garbled: the request or the answer arrived damaged `GARBLED_TIMES` times.
            WireError: the answer is not such a record.
            StrataError: the other side answered with this error.
        """
        sent = {**self.headers(), "content-type": MEDIA_TYPE, "content-length": str(body.n_bytes)}
        sent |= {CHECKSUM_HEADER: await computed(body.n_bytes, body.checksum), **(headers or {})}
        garbled = itertools.count(1)

        async def attempt(left: float) -> tuple[memoryview, Mapping[str, str]]:
            try:
                return await self._once(url(), body, sent, peer)
            except Garbled as error:
                if next(garbled) >= GARBLED_TIMES:
                    raise
                raise Unreachable(error.detail) from None

        began, over = time.monotonic(), (httpx2.TransportError, Unreachable, *TRANSIENT)
        raw, got = await retry(attempt, limit_s=limit_s, peer=str(peer), over=over)
        self.exchanged(url().rpartition("/")[2], body.n_bytes, len(raw), time.monotonic() - began)
        return Reply(codec.decode(kind, raw, model=model, n_seats=n_seats), body.n_bytes, len(raw), got)

    async def _once(
        self, url: str, body: codec.Body, headers: dict[str, str], peer: Identity
    ) -> tuple[memoryview, Mapping[str, str]]:
        timeout = httpx2.Timeout(None, connect=CONNECT_S)
        async with self.opened("POST", url, peer, content=_stream(body), headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                raise remote_error(response.status_code, await read_answer(response, JSON_BYTES), url)
            return await read_answer(response, self.max_bytes), response.headers

    @asynccontextmanager
    async def opened(self, method: str, url: str, peer: Identity, **options: Any) -> AsyncIterator[httpx2.Response]:
        """Sends a request and checks who answers; the body of the answer can be read within.

        Args:
            method: of the request.
            url: its address.
            peer: the other side.
            options: further ones of `httpx2.AsyncClient.stream`.

        Raises:
            Unreachable: another node answers, or one whose certificate has been revoked.
        """
        async with self.client.stream(
            method, url, follow_redirects=False, extensions=self._called(peer), **options
        ) as response:
            self._check_peer(response, peer)
            yield response

    async def call_json(self, method: str, url: str, payload: Any = None, *, limit_s: float, peer: Identity) -> Any:
        """Sends one small JSON request, without retries, and returns the answer's value (None if it is empty).

        Raises:
            DeadlineExceeded, Unreachable: naming the side that did not answer.
            WireError: the answer is not valid JSON.
            StrataError: the other side answered with this error.
        """
        request = self.opened(method, url, peer, json=payload, headers=self.headers(), timeout=limit_s)
        try:
            async with asyncio.timeout(limit_s), request as response:
                status, body = response.status_code, await read_answer(response, JSON_BYTES)
        except (TimeoutError, httpx2.TimeoutException):
            raise DeadlineExceeded(f"{peer} did not answer within {limit_s:g} s") from None
        except httpx2.TransportError as error:
            raise Unreachable(f"{peer}: {type(error).__name__}: {error}{_clock_hint(error)}") from None
        if status >= 300:
            raise remote_error(status, body, url)
        try:
            return json.loads(bytes(body)) if body else None
        except (ValueError, RecursionError):
            raise WireError(f"{peer} answered with no JSON") from None

    def _called(self, peer: Identity) -> dict[str, Any]:
        """Returns what a connection is opened with: the name that the certificate of the other side must have."""
        return {"sni_hostname": peer.server_name} if self.keys else {}

    def _check_peer(self, response: httpx2.Response, peer: Identity) -> None:
        """Checks who answers: a connection that is kept open may be that of the node which had this address before.

        Raises:
            Unreachable: it is another node, or its certificate has been revoked.
        """
        if self.keys is None:
            return
        found = peer_in(response)
        if found is None or found.identity != peer:
            raise Unreachable(f"{found.identity if found else 'a node without certificate'} answers for {peer}")
        if found.serial in self.revoked:
            raise Unreachable(f"the certificate of {peer} has been revoked")


def peer_in(response: httpx2.Response) -> Peer | None:
    """Returns the peer that answered, as its certificate shows it; None where it shows none."""
    if PEER in response.extensions:  # the answer came with a request of its own
        found: Peer | None = response.extensions[PEER]
        return found
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("ssl_object") if stream is not None else None
    return peer_of(connection.getpeercert() or {}) if connection is not None else None


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


def _clock_hint(error: Exception) -> str:
    """What to look at where a certificate does not hold now: of two machines, one may have a wrong clock."""
    if "certificate is not yet valid" not in str(error) and "certificate has expired" not in str(error):
        return ""
    return f" (by the clock of this machine, which says {written(time.time())}; is it right?)"


async def _stream(body: codec.Body) -> AsyncIterator[bytes]:
    for piece in pieces(body.parts):
        yield piece


async def read_answer(response: httpx2.Response, limit: int) -> memoryview:
    """Returns the body of an answer, checked against its length and checksum."""
    size = content_length(response.headers)
    if (size or 0) > limit:
        raise TooLarge(f"an answer of {size} bytes, the limit is {limit}")
    arriving = Arriving(size, limit)
    async for chunk in response.aiter_bytes():
        arriving.add(chunk)
    return arriving.whole(response.headers, "answer")
