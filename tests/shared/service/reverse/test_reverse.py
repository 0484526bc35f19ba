"""Requests to a node that dials out: what it and the tier above do, with faults between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.core.errors import (
    Conflict,
    DeadlineExceeded,
    Forbidden,
    NotReady,
    TooLarge,
    TooMany,
    Unreachable,
    WireError,
)
from shared.core.records import Record
from shared.identity.names import CLOUD, Identity, Peer, agent_identity
from shared.service.app import make_app
from shared.service.auth import guard
from shared.service.bodies import BodyResponse, read_body
from shared.service.body_limit import BodyLimit
from shared.service.client import Caller, tier_client
from shared.service.reverse import desk as desk_module
from shared.service.reverse import uplinks as uplinks_module
from shared.service.reverse.desk import Answer, Desk, Waiting
from shared.service.reverse.in_process import Exchange
from shared.service.reverse.records import ANSWER_HEADER, NONCE_HEADER, AnswerHead, RequestHead, address_of
from shared.service.reverse.routes import REQUESTS, reverse_routes
from shared.service.reverse.taker import Taker
from shared.service.reverse.transport import reverse_mounts
from shared.service.reverse.uplinks import Uplinks
from shared.wire import codec
from tests.waits import HANG_S

NONCE, OTHER = "0123456789abcdef", "fedcba9876543210"
NODE = agent_identity("a-1")
URL = address_of(NONCE)
BIG = 3 * 2**20
PassOn = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class Text(Record):
    text: str


@dataclass
class Setting:
    """A tier above, and a node that dials out; `tamper` stands between them."""

    above: FastAPI
    node: FastAPI
    caller: Caller
    calls: list[str] = field(default_factory=list)
    tamper: Callable[[httpx2.Request, PassOn], Awaitable[httpx2.Response]] | None = None

    @property
    def desk(self) -> Desk:
        found: Desk = self.above.state.desk
        return found

    def taker(self) -> Taker:
        inner = httpx2.ASGITransport(self.above, raise_app_exceptions=False)

        class Between(httpx2.AsyncBaseTransport):
            async def handle_async_request(_, request: httpx2.Request) -> httpx2.Response:
                self.calls.append(f"{request.method} {request.url.path.split('/')[1]}")
                go: Any = inner.handle_async_request
                return await (self.tamper(request, go) if self.tamper else go(request))

        client = httpx2.AsyncClient(transport=Between())
        return Taker(Caller(client, "tier"), self.node, NONCE, "http://127.0.0.1:9000", CLOUD)


@asynccontextmanager
async def setting(max_bytes: int = 2**31) -> AsyncIterator[Setting]:
    above = make_app("above", routes=reverse_routes("node"), guards={"node": guard("tier", (), "tier")})
    above.state.desk = Desk(above.state.closing)
    above.add_middleware(BodyLimit, tokens=("tier",), apart=(REQUESTS,))
    node = make_app("node")
    node.state.seen = []
    node.state.held, node.state.gone = asyncio.Event(), asyncio.Event()

    @node.post("/visits")
    async def visits(request: Request) -> Response:
        await guard("tier", (), "tier")(request)
        body, digest = await read_body(request, 2 * BIG)
        node.state.seen.append(digest)
        return BodyResponse(codec.encode(Text(text=codec.decode(Text, body).text[::-1])), headers={"strata-place": "x"})

    @node.get("/slow")
    async def slow(request: Request) -> str:
        node.state.held.set()
        while not await request.is_disconnected():  # noqa: ASYNC110 - a closed connection sets no event
            await asyncio.sleep(0.01)
        node.state.gone.set()
        return "late"

    async with tier_client(mounts=reverse_mounts(above.state.desk)) as client:
        yield Setting(above, node, Caller(client, "tier", max_bytes))


async def visit(found: Setting, text: str, limit_s: float = HANG_S) -> str:
    reply = await found.caller.post_record(
        lambda: f"{URL}/visits", codec.encode(Text(text=text)), Text, limit_s=limit_s, peer=NODE
    )
    assert reply.headers["strata-place"] == "x"
    return reply.record.text


# ---- what goes well


@pytest.mark.parametrize("n", [1, BIG])
async def test_a_request_and_its_answer_pass_unchanged(n: int) -> None:
    async with setting() as found:
        taker = found.taker()
        taker.start()
        assert await visit(found, "a" * n + "b") == "b" + "a" * n
        await taker.stop()
        assert len(found.node.state.seen) == 1


async def test_many_requests_are_taken_at_once_and_errors_of_the_node_come_back() -> None:
    async with setting() as found:
        taker = found.taker()
        taker.start()
        texts = [f"{number:04d}" for number in range(250)]
        assert await asyncio.gather(*(visit(found, text) for text in texts)) == [text[::-1] for text in texts]
        with pytest.raises(Exception, match="GET /nowhere") as refused:
            await found.caller.call_json("GET", f"{URL}/nowhere", limit_s=HANG_S, peer=NODE)
        assert getattr(refused.value, "status", None) == 404
        await taker.stop()


# ---- faults between them


def cut(path: str, *, before: bool, times: int = 1) -> Any:
    """A fault: the connection of a request breaks, before it is passed on or when its answer comes."""
    left = [times]

    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if f"{request.method} {request.url.path.split('/')[1]}" != path or not left[0]:
            return await pass_on(request)
        if not before:
            answer = await pass_on(request)
            if path == "POST polls" and not (await answer.aread()).count(b"target"):
                return answer
        left[0] -= 1
        raise httpx2.ReadError("cut", request=request)

    return tamper


@pytest.mark.parametrize("path", ["POST polls", "GET requests", "POST requests"])
@pytest.mark.parametrize("before", [True, False])
async def test_after_a_broken_connection_the_same_request_is_answered(path: str, before: bool) -> None:
    async with setting() as found:
        found.tamper = cut(path, before=before, times=2)
        taker = found.taker()
        taker.start()
        assert await visit(found, "abc") == "cba"
        await taker.stop()
        assert len(found.node.state.seen) == 1, "its application answered once"
        assert found.calls.count(path) > (path != "POST requests" or before), "an answer that came is not sent again"


async def test_a_newer_poll_ends_an_older_one_and_no_request_is_lost() -> None:
    async with setting() as found:
        first, second = found.taker(), found.taker()
        first.start()
        second.start()
        texts = [f"{number:04d}" for number in range(20)]
        assert await asyncio.gather(*(visit(found, text) for text in texts)) == [text[::-1] for text in texts]
        await asyncio.gather(first.stop(), second.stop())


async def test_a_request_that_nobody_waits_for_is_withdrawn() -> None:
    async with setting() as found:
        taker = found.taker()
        taker.start()
        waits = asyncio.create_task(found.caller.call_json("GET", f"{URL}/slow", limit_s=HANG_S, peer=NODE))
        async with asyncio.timeout(HANG_S):
            await found.node.state.held.wait()
            waits.cancel()
            await found.node.state.gone.wait()  # as if its connection had been closed
        await taker.stop()
        assert found.desk.missing() == ()


async def test_a_node_that_does_not_poll_or_stops_polling_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "CLOSED_S", 0.05)
    monkeypatch.setattr(desk_module, "GONE_S", 0.05)
    async with setting() as found:
        called: list[tuple[str, ...]] = []
        found.desk.on_missing = lambda: called.append(found.desk.missing())
        with pytest.raises((Unreachable, DeadlineExceeded)):
            await found.caller.call_json("GET", f"{URL}/slow", limit_s=0.05, peer=NODE)
        assert called == [(URL.removeprefix("up://"),)]
        taker = found.taker()
        taker.start()
        waits = asyncio.create_task(found.caller.call_json("GET", f"{URL}/slow", limit_s=HANG_S, peer=NODE))
        async with asyncio.timeout(HANG_S):
            await found.node.state.held.wait()
        await taker.stop()
        with pytest.raises(Unreachable, match="ReadError: the node dials out, and polls no more"):
            await waits
        assert not found.desk._processes


async def test_an_answer_that_is_too_large_is_refused() -> None:
    async with setting(max_bytes=2**20) as found:
        taker = found.taker()
        taker.start()
        with pytest.raises(TooLarge, match="the limit is 1048576"):
            await visit(found, "a" * BIG)
        assert await visit(found, "after it") == "ti retfa"
        await taker.stop()


async def test_polls_end_when_the_tier_above_shuts_down() -> None:
    async with setting() as found:
        taker = found.taker()
        taker.start()
        assert await visit(found, "ab") == "ba"
        found.above.state.closing.set()
        with pytest.raises(NotReady):
            await found.desk.poll("0" * 16, (), None, asyncio.get_running_loop().create_future())
        await taker.stop()


# ---- who may take and answer


async def asked(found: Setting, method: str, path: str, nonce: str = NONCE, **options: Any) -> httpx2.Response:
    inner = httpx2.ASGITransport(found.above, raise_app_exceptions=False)
    headers = {"authorization": "Bearer tier", NONCE_HEADER: nonce, **options.pop("headers", {})}
    async with httpx2.AsyncClient(transport=inner, base_url="http://above") as client:
        return await client.request(method, path, headers=headers, **options)


async def waiting(found: Setting) -> tuple[asyncio.Task[str], str]:
    """A request that the node has polled for, and its id."""
    task = asyncio.create_task(visit(found, "abc"))
    answer = (await asked(found, "POST", "/polls", json={})).json()
    [head] = answer["requests"]
    return task, head["request"]


HEAD = {ANSWER_HEADER: AnswerHead(status=204, headers=()).model_dump_json()}


async def test_another_process_can_neither_take_nor_answer_a_request() -> None:
    async with setting() as found:
        task, name = await waiting(found)
        desk_poll = asyncio.create_task(asked(found, "POST", "/polls", OTHER, json={}))
        for method in ("GET", "POST"):
            for nonce, token, status in ((OTHER, "tier", 404), (NONCE, "wrong", 401), ("", "tier", 422)):
                headers = {"authorization": f"Bearer {token}", **HEAD}
                refused = await asked(found, method, f"/requests/{name}", nonce, headers=headers)
                assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")
        assert (await asked(found, "GET", f"/requests/{'0' * 32}")).status_code == 404
        assert not desk_poll.done()
        desk_poll.cancel()
        body = await asked(found, "GET", f"/requests/{name}")
        assert codec.decode(Text, memoryview(bytearray(body.content))).text == "abc"
        task.cancel()


@pytest.mark.parametrize("sent", [b"abcd", b"abc" * BIG])
async def test_a_request_has_no_more_bytes_than_it_was_announced_with(sent: bytes) -> None:
    read = list[bytes]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert dict(scope["headers"])[b"content-length"] == b"3"
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            read.append(message["body"])
        assert message["type"] == "http.disconnect"

    async def body() -> AsyncIterator[bytes]:
        yield sent

    lies = (("content-length", "1"), ("transfer-encoding", "chunked"))
    head = RequestHead(request="0" * 32, method="POST", target="/nonce", headers=lies, n_bytes=3)
    exchange = Exchange(head, body(), ("127.0.0.1", 0), None, asyncio.Event())
    await exchange.run(app)
    assert read == []
    assert isinstance(exchange.error, WireError)


async def test_a_request_is_answered_once() -> None:
    async with setting() as found:
        task, name = await waiting(found)
        wrong = await asked(found, "POST", f"/requests/{name}", headers={ANSWER_HEADER: "{}"})
        assert (wrong.status_code, wrong.json()["field"]) == (400, ANSWER_HEADER)
        assert (await asked(found, "POST", f"/requests/{name}", headers=HEAD)).status_code == 204
        again = await asked(found, "POST", f"/requests/{name}", headers=HEAD)
        assert (again.status_code, again.json()["code"]) == (404, "not_found")
        task.cancel()


def peer(identity: Identity) -> Peer:
    return Peer(identity=identity, serial="1", not_after=2.0**40)


async def test_with_certificates_a_request_is_only_for_the_node_that_is_called() -> None:
    desk, never = Desk(asyncio.Event()), asyncio.get_running_loop().create_future()
    request = Waiting("GET", "/nonce", (), (), NODE.server_name)
    desk.put("p", request)
    other, own = peer(agent_identity("a-2")), peer(NODE)
    polls = asyncio.create_task(desk.poll("p", (), other, never))
    await asyncio.sleep(0)
    assert not polls.done()
    for stranger in (other, None):
        with pytest.raises(Forbidden, match="is not for"):
            desk.find("p", request.request, stranger)
    assert [head.request for head in (await desk.poll("p", (), own, never)).requests] == [request.request]
    waits = asyncio.create_task(desk.poll("p", (request.request,), own, never))
    await asyncio.sleep(0)
    again = asyncio.create_task(desk.poll("p", (), other, never))  # who knows the nonce ends no poll of the node
    with pytest.raises(Conflict, match="a newer poll"):
        await polls
    assert not waits.done()
    for task in (waits, again):
        task.cancel()
    await asyncio.gather(waits, again, return_exceptions=True)
    assert desk.find("p", request.request, own) is request
    taken = asyncio.create_task(desk.answer(request, Answer(AnswerHead(status=200, headers=()), _nothing(), own)))
    await asyncio.sleep(0)
    with pytest.raises(Conflict, match="has been answered"):
        await desk.answer(request, Answer(AnswerHead(status=200, headers=()), _nothing(), own))
    request.give_up()
    await taken


async def _nothing() -> AsyncIterator[bytes]:
    for chunk in list[bytes]():
        yield chunk


async def test_so_many_processes_may_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "MAX_AGENTS", 1)
    desk = Desk(asyncio.Event())
    desk.put("p", Waiting("GET", "/", (), (), None))
    with pytest.raises(TooMany, match="the limit is 1"):
        await desk.poll("q", (), None, asyncio.get_running_loop().create_future())


async def test_an_edge_asks_a_process_that_polls_here_to_poll_it_too() -> None:
    desk, never = Desk(asyncio.Event()), asyncio.get_running_loop().create_future()
    polls = asyncio.create_task(desk.poll("p", (), None, never))
    await asyncio.sleep(0)
    desk.call("p", "edge-1", "http://10.0.0.1:8001")
    desk.call("unknown", "edge-1", "http://10.0.0.1:8001")
    assert (await polls).edges == {"edge-1": "http://10.0.0.1:8001"}
    assert list(desk._processes) == ["p"]


async def test_an_agent_polls_edges_that_ask_for_it_where_edges_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async with setting() as cloud, setting() as edge:
        addresses = {9000: cloud, 9100: edge}
        polled: list[int] = []

        class Between(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                port = request.url.port or 0
                polled.append(port)
                inner = httpx2.ASGITransport(addresses[port].above, raise_app_exceptions=False)
                return await inner.handle_async_request(request)

        caller = Caller(httpx2.AsyncClient(transport=Between()), "tier")
        links = Uplinks(caller, cloud.node, NONCE, "http://127.0.0.1:9000", lambda _, url: "127.0.0.1" in url)
        links.start()
        assert await visit(cloud, "ab") == "ba"
        assert set(polled) == {9000}
        process = URL.removeprefix("up://")

        def ask() -> None:
            for each in edge.desk.missing():
                cloud.desk.call(each, "edge-1", "http://127.0.0.1:9100")
                cloud.desk.call(each, "edge-2", "http://8.8.8.8:9200")

        edge.desk.on_missing = ask
        assert await visit(edge, "abc") == "cba"
        assert set(polled) == {9000, 9100}
        monkeypatch.setattr(uplinks_module, "IDLE_S", -1.0)
        cloud.desk.call(process, "edge-3", "http://8.8.8.8:9300")
        async with asyncio.timeout(HANG_S):
            while links._edges:  # noqa: ASYNC110 - the end of a poll sets no event here
                await asyncio.sleep(0.01)
        await links.stop()
