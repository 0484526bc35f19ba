"""HEAD is answered as GET without its body, OPTIONS with the methods of a resource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2
from fastapi import Depends
from fastapi.responses import StreamingResponse

from shared.core.errors import Unauthorised
from shared.service.app import make_app
from tests.waits import HANG_S


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"event\n"
        await asyncio.sleep(0)


def refuse() -> None:
    raise Unauthorised("a token is needed")


async def answers(method: str, *paths: str) -> list[tuple[int, str, str | None]]:
    """Status, body and `Allow` of the answers to requests, through the middleware that all tiers have."""
    app = make_app("probe")

    @app.get("/runs")
    async def listed() -> list[int]:
        return [1, 2]

    @app.post("/runs")
    async def created() -> int:
        return 1

    @app.get("/events")
    async def events() -> StreamingResponse:
        return StreamingResponse(endless())

    @app.get("/guarded", dependencies=[Depends(refuse)])
    async def guarded() -> int:
        return 1

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://t") as client:
        async with asyncio.timeout(HANG_S):
            found = [await client.request(method, path) for path in paths]
    return [(answer.status_code, answer.text, answer.headers.get("allow")) for answer in found]


async def test_head_has_the_status_of_get_and_no_body_even_of_a_stream_without_an_end() -> None:
    found = await answers("HEAD", "/runs", "/events", "/guarded", "/nowhere")
    assert [(status, body) for status, body, _ in found[:3]] == [(200, ""), (200, ""), (401, "")]
    assert found[3][0] == 404


async def test_options_names_the_methods_of_a_resource() -> None:
    found = await answers("OPTIONS", "/runs", "/events", "/nowhere")
    assert found[:2] == [(204, "", "GET, HEAD, OPTIONS, POST"), (204, "", "GET, HEAD, OPTIONS")]
    assert found[2][0] == 404
