"""Faults for a hop of the in-process federation; a test sets one as `router.tamper`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import httpx2

from shared.service.order_headers import CHECKSUM_HEADER
from shared.service.protocol import SAID
from tests.federation import PassOn, Tamper

Reply = Callable[[httpx2.Request, PassOn], Awaitable[httpx2.Response]]


def at(port: int, path: str, reply: Reply, *, times: int = 10_000) -> Tamper:
    """Replaces the first answers of one service to one path by the fault `reply`."""
    left = [times]

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.port != port or request.url.path != path or left[0] <= 0:
            return await pass_on()
        left[0] -= 1
        return await reply(request, pass_on)

    return tamper


def together(*tampers: Tamper) -> Tamper:
    """Several faults: what one passes on comes to the next."""

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        async def come_to(place: int, request: httpx2.Request) -> httpx2.Response:
            if place == len(tampers):
                return await pass_on(request)
            return await tampers[place](request, lambda other=None: come_to(place + 1, other or request))

        return await come_to(0, request)

    return tamper


def answer(content: bytes, headers: Mapping[str, str] | None = None, status: int = 200) -> httpx2.Response:
    """Returns an answer whose body has not been read yet, as from the network."""
    return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(content))


async def hang(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
    await asyncio.sleep(3600)
    raise AssertionError("the request was not cancelled")


async def garbage(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
    return answer(b"\x10\0\0\0\0\0\0\0no record at all", SAID)


async def half(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
    whole = await pass_on()
    content = await whole.aread()
    return answer(content[: len(content) // 2], whole.headers)


async def flipped(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
    """Flips the last bit, which only the checksum can detect."""
    whole = await pass_on()
    content = await whole.aread()
    return answer(content[:-1] + bytes([content[-1] ^ 1]), whole.headers)


async def half_order(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
    content = request.content
    headers = {**request.headers, "content-length": str(len(content))}
    return await pass_on(httpx2.Request("POST", request.url, headers=headers, content=content[: len(content) // 2]))


async def without_token(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
    headers = {**request.headers, "authorization": "Bearer somebody-else"}
    return await pass_on(httpx2.Request("POST", request.url, headers=headers, content=request.content))


async def broken(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
    return answer(b'{"detail": "it is broken", "code": "internal"}', status=500)


def ending_in(tail: bytes) -> Reply:
    """Replaces the last bytes of the right answer, which hold a number."""

    async def reply(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        whole = await pass_on()
        content = await whole.aread()
        headers = {name: value for name, value in whole.headers.items() if name != CHECKSUM_HEADER}
        return answer(content[: -len(tail)] + tail, httpx2.Headers(headers))

    return reply
