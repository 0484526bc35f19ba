"""A node's side: it polls a tier above, runs the requests that it takes, and sends their answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import httpx2
from pydantic import ValidationError
from starlette.types import ASGIApp

from shared.core.errors import StrataError, Unreachable, WireError
from shared.core.field_errors import first_fault
from shared.identity.names import Identity, Peer
from shared.runtime.background import Repeating
from shared.service.bodies import pieces
from shared.service.body_limit import JSON_BYTES
from shared.service.client import CONNECT_S, Caller, peer_in, read_answer
from shared.service.remote_errors import remote_error
from shared.service.retry import backoff
from shared.service.reverse.desk import WAIT_S
from shared.service.reverse.in_process import Exchange
from shared.service.reverse.records import ANSWER_HEADER, NONCE_HEADER, Poll, PollAnswer, RequestHead

log = logging.getLogger(__name__)
POLL_LIMIT_S = WAIT_S + 10.0
"""Longest wait for the answer to a poll."""
_ENDLESS = httpx2.Timeout(None, connect=CONNECT_S)


def _pause_s(failures: int, took_s: float) -> float:
    return backoff(failures - 1) if failures else 0.0


async def _nobody(edges: Mapping[str, str]) -> None:
    """What follows where edges ask for a node that polls no edges: nothing."""


class Taker:
    """Takes requests from one process above, and runs them through this process' application.

    Args:
        caller: the HTTP client.
        app: answers the requests.
        nonce: with which this process registers.
        url: of the process above.
        peer: who that is.
        called: is told of edges that ask to be polled, by name.

    Attributes:
        used_at: when the last request came or ended (monotonic).
    """

    def __init__(
        self,
        caller: Caller,
        app: ASGIApp,
        nonce: str,
        url: str,
        peer: Identity,
        called: Callable[[Mapping[str, str]], Awaitable[None]] = _nobody,
    ) -> None:
        self.caller, self.app, self.url, self.peer, self.called = caller, app, url, peer, called
        self.used_at = time.monotonic()
        self._headers = {**caller.headers(), NONCE_HEADER: nonce}
        self._held: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._polling = Repeating(_pause_s, self._poll, f"no requests are taken from {peer}")

    def start(self) -> None:
        """Begins to poll."""
        self._polling.start()

    def wake(self) -> None:
        """Polls at once if the last poll has failed."""
        self._polling.wake()

    async def stop(self) -> None:
        """Ends the poll, and the requests in work."""
        await self._polling.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether no request from there is in work."""
        return not self._tasks

    # ---- requests

    async def _poll(self) -> None:
        payload = Poll(held=tuple(self._held)).model_dump(mode="json")
        try:
            async with (
                asyncio.timeout(POLL_LIMIT_S),
                self.caller.opened(
                    "POST", f"{self.url}/polls", self.peer, json=payload, headers=self._headers, timeout=_ENDLESS
                ) as response,
            ):
                body = await read_answer(response, JSON_BYTES)
        except (TimeoutError, httpx2.TransportError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from None
        if response.status_code != 200:
            raise remote_error(response.status_code, body, self.url)
        try:
            answer = PollAnswer.model_validate_json(bytes(body))
        except ValidationError as error:
            raise WireError(f"the answer to a poll: {first_fault(error)[1]}") from None
        for head in answer.requests:
            self._begin(head, (_address(response, self.url), 0), peer_in(response))
        for request in answer.withdrawn:
            if withdrawn := self._held.pop(request, None):
                withdrawn.set()
        await self.called(answer.edges)

    def _begin(self, head: RequestHead, client: tuple[str, int], peer: Peer | None) -> None:
        if head.request in self._held:
            return
        withdrawn = self._held[head.request] = asyncio.Event()
        task = asyncio.create_task(self._answer(head, client, peer, withdrawn))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(head.request, task))
        self.used_at = time.monotonic()

    def _ended(self, request: str, task: asyncio.Task[None]) -> None:
        self._held.pop(request, None)
        self._tasks.discard(task)
        self.used_at = time.monotonic()

    async def _answer(
        self, head: RequestHead, client: tuple[str, int], peer: Peer | None, withdrawn: asyncio.Event
    ) -> None:
        """Runs a request and sends the answer, each again after broken connections, while somebody waits for it."""
        answered: Exchange | None = None
        for tries in itertools.count():
            try:
                if answered is None:
                    answered = await self._run(Exchange(head, self._body(head), client, peer, withdrawn))
                if not withdrawn.is_set():
                    await self._send(answered)
                return
            except StrataError as error:  # the other side does not know the request any more, or refuses the answer
                log.debug("%s: %s", self.peer, error.detail)
                return
            except httpx2.TransportError as error:
                log.debug("%s: %s: %s", self.peer, type(error).__name__, error)
            except Exception:
                log.exception("a request from %s", self.peer)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff(tries)):
                    await withdrawn.wait()

    async def _run(self, exchange: Exchange) -> Exchange:
        try:
            await exchange.run(self.app)
        except Exception:
            if exchange.answer is None and exchange.error is None:
                raise
        if exchange.error is not None:
            raise exchange.error
        return exchange

    async def _body(self, head: RequestHead) -> AsyncIterator[bytes]:
        if head.n_bytes:
            url = f"{self.url}/requests/{head.request}"
            async with self.caller.opened("GET", url, self.peer, headers=self._headers, timeout=_ENDLESS) as response:
                if response.status_code != 200:
                    raise remote_error(response.status_code, await read_answer(response, JSON_BYTES), url)
                async for chunk in response.aiter_raw():
                    yield chunk

    async def _send(self, exchange: Exchange) -> None:
        if exchange.answer is None:
            raise WireError("the application sent no answer")
        url, size = f"{self.url}/requests/{exchange.head.request}", sum(map(len, exchange.parts))
        head = {ANSWER_HEADER: exchange.answer.model_dump_json(ensure_ascii=True), "content-length": str(size)}
        body = _stream(exchange.parts)
        async with self.caller.opened(
            "POST", url, self.peer, content=body, headers={**self._headers, **head}, timeout=_ENDLESS
        ) as response:
            if response.status_code != 204:
                raise remote_error(response.status_code, await read_answer(response, JSON_BYTES), url)


async def _stream(parts: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces(tuple(parts)):
        yield piece


def _address(response: httpx2.Response, url: str) -> str:
    """The address of the process that answered."""
    stream = response.extensions.get("network_stream")
    found = stream.get_extra_info("server_addr") if stream is not None else None
    return str(found[0]) if found else str(urlsplit(url).hostname)
