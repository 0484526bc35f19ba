"""The transport of an HTTP client whose requests go to processes that dial out, at addresses `up://PROCESS`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
from starlette.requests import ClientDisconnect

from shared.core.errors import TooMany
from shared.service.client import CONNECT_S
from shared.service.peers import PEER
from shared.service.reverse.desk import Answer, Desk, Waiting
from shared.service.reverse.records import SCHEME, as_bytes, as_text


class _Body(httpx2.AsyncByteStream):
    """The body of an answer, as it arrives."""

    def __init__(self, answer: Answer, request: httpx2.Request) -> None:
        self._answer, self._request = answer, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.body:
                yield chunk
        except ClientDisconnect:
            raise httpx2.ReadError("the connection with the answer was closed", request=self._request) from None

    async def aclose(self) -> None:
        """Lets the node's request end."""
        self._answer.taken.set()


def reverse_mounts(desk: Desk) -> dict[str, httpx2.AsyncBaseTransport]:
    """Returns the mounts of an HTTP client that also calls processes which dial out."""
    return {f"{SCHEME}://": ReverseTransport(desk)}


class ReverseTransport(httpx2.AsyncBaseTransport):
    """Leaves requests at a desk and waits for the answers.

    A process that does not poll is a failed connection, one that stops polling a broken one, as for other addresses.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Returns the answer to a request."""
        process, limits = request.url.host, request.extensions.get("timeout", {})
        server_name: str | None = request.extensions.get("sni_hostname")
        within_s = limits.get("connect") or CONNECT_S
        try:
            await self.desk.present(process, server_name, within_s)
        except TimeoutError:
            why = f"the node dials out, and has not polled here for {within_s:g} s"
            raise httpx2.ConnectError(why, request=request) from None
        except TooMany as error:
            raise httpx2.ConnectError(error.detail, request=request) from None
        waiting = Waiting(
            method=request.method,
            target=request.url.raw_path.decode("ascii"),
            headers=as_text((name.lower(), text) for name, text in request.headers.raw),
            body=[memoryview(part) async for part in request.stream],  # type: ignore[union-attr]
            server_name=server_name,
        )
        self.desk.put(process, waiting)
        try:
            answer = await waiting.answer
        except asyncio.CancelledError:
            waiting.give_up()
            raise
        finally:
            self.desk.withdraw(process, waiting)
        if answer is None:
            raise httpx2.ReadError("the node dials out, and polls no more", request=request)
        return httpx2.Response(
            answer.head.status,
            headers=as_bytes(answer.head.headers),
            stream=_Body(answer, request),
            extensions={PEER: answer.peer},
        )
