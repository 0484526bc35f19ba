"""Clients that send slowly, send too much, do not read, or are too many."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from cloud_server.nodes.identities import issue_own
from shared.identity.authority import make_authority
from shared.identity.names import CLOUD
from shared.identity.node_keys import NodeKeys
from shared.service.app import make_app
from shared.service.bodies import read_body
from shared.service.http_protocol import Protocol
from tests.security.sockets import WAIT_S, Client, running
from tests.waits import until

POST = b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
QUICK: dict[str, Any] = {"head_s": 0.5, "body_s": 0.5, "unread_s": 0.5, "body_rate": 50}


def probe() -> FastAPI:
    app = make_app("probe")

    @app.get("/healthz")
    async def healthz() -> str:
        return "ok"

    @app.post("/length")
    async def length(request: Request) -> int:
        return len((await read_body(request, 2**31))[0])

    @app.post("/refused")
    async def refused() -> Response:
        return Response(status_code=401)

    app.state.much_begun = threading.Event()

    @app.get("/much")
    async def much() -> StreamingResponse:
        app.state.much_begun.set()

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(200):
                yield bytes(2**20)

        return StreamingResponse(chunks())

    return app


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(probe(), **QUICK) as (found, _):
        yield found


def check_served(url: str, **options: Any) -> None:
    """Wait until a request is answered; on a busy machine its own client may be too slow for the server's limits."""

    def served() -> bool:
        with suppress(httpx2.TransportError):
            return httpx2.get(f"{url}/healthz", timeout=20, **options).status_code == 200
        return False

    until("an answer", served)


# ---- heads


@pytest.mark.parametrize("first", [b"", b"GET /he", b"GET /healthz HTTP/1.1\r\nx: y\r\n", b"\r\n"])
def test_a_client_without_a_head_is_disconnected(port: int, first: bytes) -> None:
    with closing(Client(port, first)) as client:
        assert client.rest() == b""


@pytest.mark.parametrize("before", [b"", GET], ids=["on a new connection", "on one that was answered"])
@pytest.mark.parametrize("drop", [b"x: y\r\n", b"\r\n"], ids=["headers", "blank lines"])
def test_a_client_whose_head_trickles_is_disconnected(port: int, before: bytes, drop: bytes) -> None:
    head = b"" if drop == b"\r\n" else b"GET /healthz HTTP/1.1\r\n"
    with closing(Client(port, before)) as client:
        assert not client.drip(head + drop * 1000, every_s=0.02)
    check_served(f"http://127.0.0.1:{port}")


def test_a_head_that_is_too_large_is_refused(port: int) -> None:
    with closing(Client(port, b"GET / HTTP/1.1\r\nx: " + b"y" * 2**20)) as client:
        status, body = client.answer()
    assert (status, body["code"], body["status"]) == (431, "too_large", 431)


def test_a_line_end_after_a_request_does_not_truncate_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    app, head_is_late = probe(), Protocol._head_is_late
    begun, head_was_late = threading.Event(), asyncio.Event()

    @app.get("/slow")
    async def slow() -> str:
        begun.set()
        await head_was_late.wait()
        return "late"

    def note(protocol: Protocol) -> None:
        head_is_late(protocol)
        head_was_late.set()

    monkeypatch.setattr(Protocol, "_head_is_late", note)
    with running(app, **QUICK) as (port, _), closing(Client(port, GET.replace(b"healthz", b"slow"))) as client:
        assert begun.wait(WAIT_S)
        assert client.send(b"\r\n")  # as if another head began
        assert client.rest().endswith(b'"late"')


# ---- bodies


def test_a_body_that_trickles_is_answered_with_408(port: int) -> None:
    with closing(Client(port, POST % 10 + b"12345")) as client:
        status, body = client.answer()
    assert (status, body["code"], body["status"]) == (408, "too_slow", 408)
    assert body["detail"] == "the body did not come within 1 s"
    check_served(f"http://127.0.0.1:{port}")


def test_a_large_body_may_take_longer_than_a_small_one(port: int) -> None:
    with closing(Client(port, POST % 1000)) as client:  # 0.5 s and 1000 / 50
        assert client.drip(b"x" * 50, every_s=0.02)
        assert client.send(b"x" * 950)
        assert client.receives(b"\r\n\r\n1000")


def test_a_client_refused_early_cannot_send_for_ever(port: int) -> None:
    claims = b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n"
    with closing(Client(port, claims)) as client:
        assert client.receives(b"401")
        assert not client.drip(b"x" * 10_000, every_s=0.02)


def test_a_connection_stays_open_after_an_early_refusal_whose_body_came_late() -> None:
    claims = b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n"
    with running(probe()) as (port, _), closing(Client(port, claims)) as client:
        assert client.receives(b"401")
        assert client.send(b"abc" + GET)
        assert client.receives(b"200 OK")


def test_data_that_arrived_while_the_process_was_stopped_is_read_first() -> None:
    app, blocked, sent = probe(), threading.Event(), threading.Event()

    @app.get("/blocked")
    async def block() -> str:
        """Blocks the process, as if it were stopped, from when another client connects until its head is overdue."""
        while len(server.server_state.connections) < 2:  # noqa: ASYNC110 - uvicorn has no event for this
            await asyncio.sleep(0.001)
        blocked.set()
        sent.wait(WAIT_S)
        time.sleep(2 * QUICK["head_s"])  # noqa: ASYNC251 - on purpose
        return "awake"

    with (
        running(app, **QUICK) as (port, server),
        closing(Client(port, GET.replace(b"healthz", b"blocked"))) as blocking,
        closing(Client(port)) as waiting,
    ):
        assert blocked.wait(WAIT_S)
        waiting.send(GET)
        sent.set()
        assert blocking.receives(b'"awake"')
        assert waiting.receives(b"200 OK")


# ---- answers


def test_a_client_that_does_not_read_is_disconnected() -> None:
    app = probe()
    with running(app, **QUICK) as (port, server), closing(Client(port, GET.replace(b"healthz", b"much"))):
        assert app.state.much_begun.wait(WAIT_S)
        state = server.server_state
        until("the end of the request", lambda: not state.tasks and not state.connections, WAIT_S)


def test_a_client_that_reads_slowly_gets_everything() -> None:
    unread_s, pause_s = 5.0, 0.05
    limits = {**QUICK, "unread_s": unread_s}
    with running(probe(), **limits) as (port, _), closing(Client(port, GET.replace(b"healthz", b"much"))) as client:
        got, paused_s = 0, 0.0
        while got < 200 * 2**20:
            chunk = client.socket.recv(2**20)
            assert chunk
            got += len(chunk)
            if paused_s < 1.25 * unread_s:
                time.sleep(pause_s)  # a slow client, but one that reads
                paused_s += pause_s


# ---- connections


def test_one_connection_too_many_is_refused_and_the_others_are_served() -> None:
    with running(probe(), max_connections=5) as (port, server):
        kept = [Client(port) for _ in range(5)]
        until("all connections", lambda: len(server.server_state.connections) == 5)
        with closing(Client(port)) as silent:
            assert silent.answer()[0] == 503
        refused = httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=60)
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        assert kept[0].send(GET)
        assert kept[0].receives(b"200 OK")
        for client in kept:
            client.close()
        until("the end of all", lambda: not server.server_state.connections, WAIT_S)
        check_served(f"http://127.0.0.1:{port}")


def test_a_client_that_never_shakes_hands_is_closed(tmp_path: Path) -> None:
    keys, authority = NodeKeys(CLOUD, tmp_path), make_authority()
    issue_own(keys, authority, 600.0, ["127.0.0.1"])
    with running(probe(), keys, **QUICK) as (port, _):
        with closing(Client(port)) as silent, closing(Client(port, b"\x16\x03\x01\x02")) as slow:
            assert (silent.rest(), slow.rest()) == (b"", b"")
        context = ssl.create_default_context(cadata=authority.pem)
        check_served(f"https://127.0.0.1:{port}", verify=context)
