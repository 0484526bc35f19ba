"""Bodies between tiers: limits, digests, retries, errors."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx2
import pytest
import torch
from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response

from shared.core.errors import (
    Busy,
    Conflict,
    DeadlineExceeded,
    Garbled,
    Lost,
    OutOfBound,
    PlacementUnknown,
    StrataError,
    TooLarge,
    Unreachable,
    WireError,
)
from shared.core.records import Nothing, Record
from shared.core.tensor_records import Tensor
from shared.identity.names import CLOUD, Identity, agent_identity, edge_identity
from shared.identity.node_keys import NodeKeys
from shared.service import bodies, order_headers, retry
from shared.service import client as client_module
from shared.service.bodies import Arriving, BodyResponse, read_body
from shared.service.client import Caller, while_alive
from shared.service.problems import install_problems
from shared.service.remote_errors import remote_error
from shared.service.retry import pause_s
from shared.wire import codec
from tests.fakes.simulated_time import in_simulated_time

URL = "http://edge"
LIMIT = 1000


class Parcel(Record):
    tensor: Tensor


def app(limit: int = LIMIT) -> FastAPI:
    """Answers a record with its tensor plus one; raises an error on request."""
    found = FastAPI()
    install_problems(found)

    @found.post("/plus")
    async def plus(request: Request) -> Response:
        body, digest = await read_body(request, limit)
        assert digest == codec.digest_of(body)
        answer = Parcel(tensor=codec.decode(Parcel, body).tensor + 1)
        return BodyResponse(codec.encode(answer), headers={"strata-note": "well"})

    @found.post("/elsewhere")
    async def elsewhere() -> Response:
        return RedirectResponse(f"{URL}/plus")

    @found.post("/raise/{what}")
    async def raised(what: str) -> None:
        raise {
            "seating": PlacementUnknown("which seating?"),
            "bound": OutOfBound("too much", field="delta.w"),
            "conflict": Conflict("not now"),
        }[what]

    @found.get("/json")
    async def small() -> dict[str, int]:
        return {"a": 1}

    @found.delete("/json", status_code=204)
    async def nothing() -> None:
        return None

    return found


Handler = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class Scripted(httpx2.AsyncBaseTransport):
    """Breaks the first connections, then passes requests on."""

    def __init__(self, breaks: int = 0, then: Handler | None = None) -> None:
        self.breaks, self.seen = breaks, 0
        inner = httpx2.ASGITransport(app(), raise_app_exceptions=False)
        self.then: Handler = then or inner.handle_async_request

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.seen += 1
        if self.seen <= self.breaks:
            raise httpx2.ConnectError("nobody listens", request=request)
        return await self.then(request)


async def post(
    path: str, script: Scripted | None = None, limit_s: float = 60.0, kind: type[Record] = Parcel, **options: Any
) -> client_module.Reply[Any]:
    body = codec.encode(Parcel(tensor=torch.tensor([1.0, 2.0])))
    async with httpx2.AsyncClient(transport=script or Scripted(), follow_redirects=True) as client:
        caller = Caller(client, **options)
        return await caller.post_record(lambda: URL + path, body, kind, limit_s=limit_s, peer=agent_identity("seven"))


async def call(method: str, path: str, script: Scripted | None = None, limit_s: float = 60.0) -> Any:
    async with httpx2.AsyncClient(transport=script or Scripted(), follow_redirects=True) as client:
        return await Caller(client).call_json(method, URL + path, limit_s=limit_s, peer=CLOUD)


class FakeStream:
    """A connection whose other side shows this certificate."""

    def __init__(self, identity: Identity | None, serial: str = "A1") -> None:
        names = (("URI", identity.uri),) if identity else ()
        self.shown = {"subjectAltName": names, "serialNumber": serial, "notAfter": "Jan  1 00:00:00 2040 GMT"}

    def get_extra_info(self, what: str) -> Any:
        return self if what == "ssl_object" else None

    def getpeercert(self) -> dict[str, Any]:
        return self.shown


@pytest.mark.parametrize(
    ("shown", "revoked", "why"),
    [
        (agent_identity("seven"), (), None),
        (agent_identity("eight"), (), "agent eight answers for agent seven"),
        (edge_identity("seven"), (), "edge seven answers for agent seven"),
        (agent_identity("seven"), ("a1",), "the certificate of agent seven has been revoked"),
        (None, (), "names no node"),
    ],
)
async def test_an_answer_counts_only_from_the_node_that_was_called(
    tmp_path: Path, shown: Identity | None, revoked: tuple[str, ...], why: str | None
) -> None:
    called: list[Any] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        called.append(request.extensions.get("sni_hostname"))
        return httpx2.Response(200, json={"x": 1}, extensions={"network_stream": FakeStream(shown)})

    keys = NodeKeys(CLOUD, tmp_path)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        caller = Caller(client, keys=keys, revoked=revoked)
        asked = caller.call_json("GET", "https://a/nonce", limit_s=60, peer=agent_identity("seven"))
        if why is None:
            assert await asked == {"x": 1}
        else:
            with pytest.raises(StrataError, match=why):
                await asked
    assert called == [agent_identity("seven").server_name]


def answering(status: int, content: bytes = b"", **headers: str) -> Scripted:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=content, headers=headers)

    return Scripted(then=answer)


# ---- the server


async def send_raw(chunks: list[bytes], length: str | None, checksum: str | None = None) -> httpx2.Response:
    """POST chunks with any Content-Length."""
    messages: list[Any] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages[-1]["more_body"] = False
    sent: list[Any] = []
    headers = [(b"content-length", length.encode("latin-1"))] if length is not None else []
    headers += [(order_headers.CHECKSUM_HEADER.encode(), checksum.encode())] if checksum else []
    scope = {"type": "http", "method": "POST", "path": "/plus", "headers": headers, "query_string": b""}

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app()(scope, receive, send)
    content = b"".join(bytes(message.get("body", b"")) for message in sent[1:])
    first = sent[0]
    return httpx2.Response(first["status"], headers=first["headers"], content=content, extensions={"left": messages})


GOOD = bytes(codec.encode(Parcel(tensor=torch.tensor([1.0]))).join())


@pytest.mark.parametrize(
    ("chunks", "length", "status", "text"),
    [
        ([GOOD], str(LIMIT + 1), 413, "a body of 1001 bytes, the limit is 1000"),
        ([GOOD], "9" * 5000, 413, "the limit is 1000"),
        *(([GOOD], length, 400, "a body needs a Content-Length") for length in (None, "many", "-5", "\xb2")),
        ([GOOD[:9]], str(len(GOOD)), 400, "broke off after 9 of"),
        ([GOOD, b"x"], str(len(GOOD)), 413, "longer than the"),
    ],
)
async def test_another_length_is_refused(chunks: list[bytes], length: str | None, status: int, text: str) -> None:
    found = await send_raw(chunks, length)
    assert found.status_code == status
    assert text in found.json()["detail"]
    if length == str(LIMIT + 1):
        assert len(found.extensions["left"]) == 1, "refused before it is read"


async def test_a_body_is_read_in_chunks_and_a_garbled_one_is_refused() -> None:
    length, checksum = str(len(GOOD)), f"{zlib.crc32(GOOD):08x}"
    found = await send_raw([GOOD[:7], GOOD[7:50], b"", GOOD[50:]], length, checksum)
    assert codec.decode(Parcel, found.content).tensor.tolist() == [2]
    found = await send_raw([GOOD[:-1] + b"\x01"], length, checksum)
    assert found.status_code == 400
    assert (found.json()["code"], found.json()["detail"]) == ("garbled", "the body does not match its checksum")


async def test_an_answer_has_its_length_and_arrives_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "CHUNK_BYTES", 10)
    body = codec.encode(Parcel(tensor=torch.arange(9.0)))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await BodyResponse(body, headers={"a": "b"})({"type": "http"}, None, send)  # type: ignore[arg-type]
    headers = dict(sent[0]["headers"])
    assert headers[b"content-length"] == str(body.n_bytes).encode()
    assert headers[b"content-type"] == b"application/x-safetensors"
    assert headers[b"a"] == b"b"
    assert b"".join(message["body"] for message in sent[1:]) == body.join()
    assert max(len(message["body"]) for message in sent[1:]) == 10
    assert [message["more_body"] for message in sent[1:]] == [True] * (len(sent) - 2) + [False]


# ---- the client


async def test_a_record_is_sent_and_answered() -> None:
    reply = await post("/plus")
    assert reply.record.tensor.tolist() == [2, 3]
    assert reply.sent_bytes == reply.received_bytes == codec.size(reply.record)
    assert reply.headers["strata-note"] == "well"
    with pytest.raises(WireError, match="Nothing: tensor: unknown field"):
        await post("/plus", kind=Nothing)


@pytest.mark.parametrize(("status", "code"), [(408, "too_slow"), (503, "busy")])
@in_simulated_time
async def test_a_temporary_refusal_is_retried_until_the_deadline(status: int, code: str) -> None:
    def refusal(code: str) -> Scripted:
        return answering(status, json.dumps({"detail": "not now", "code": code}).encode())

    passing, busy = Scripted(), refusal(code)
    refused, busy.then = busy.then, lambda request: (passing.then if busy.seen > 1 else refused)(request)
    assert (await post("/plus", busy)).record.tensor.tolist() == [2, 3]
    assert busy.seen == 2
    with pytest.raises(DeadlineExceeded, match=r"agent seven did not answer within 20 s \(not now\)"):
        await post("/plus", refusal(code), limit_s=20)
    with pytest.raises(StrataError, match="not now"):
        await post("/plus", refusal("another"))


async def test_the_tier_token_is_sent() -> None:
    seen: list[str | None] = []

    async def look(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers.get("authorization"))
        return httpx2.Response(200, content=GOOD)

    await post("/plus", Scripted(then=look), token="secret")  # noqa: S106 - made up
    await post("/plus", Scripted(then=look))
    assert seen == ["Bearer secret", None]


@in_simulated_time
async def test_broken_connections_are_retried() -> None:
    script = Scripted(breaks=3)
    assert (await post("/plus", script)).record.tensor.tolist() == [2, 3]
    assert script.seen == 4


@in_simulated_time
async def test_the_deadline_names_the_silent_side_and_the_last_failure() -> None:
    script = Scripted(breaks=10_000)
    with pytest.raises(DeadlineExceeded, match=r"agent seven did not answer within 600 s \(ConnectError: nobody"):
        await post("/plus", script, limit_s=600)
    assert asyncio.get_running_loop().time() == 600
    assert 600 / (1.3 * retry.BACKOFF_S[-1]) < script.seen < len(retry.BACKOFF_S) + 600 / (0.7 * retry.BACKOFF_S[-1])


@in_simulated_time
async def test_a_slow_answer_is_awaited_until_the_deadline_without_a_second_request() -> None:
    async def never(request: httpx2.Request) -> httpx2.Response:
        answer: asyncio.Future[httpx2.Response] = asyncio.get_running_loop().create_future()
        return await answer

    script = Scripted(then=never)
    with pytest.raises(DeadlineExceeded, match=r"agent seven did not answer within 600 s"):
        await post("/plus", script, limit_s=600)
    assert asyncio.get_running_loop().time() == 600
    assert script.seen == 1
    with pytest.raises(DeadlineExceeded, match=r"the cloud did not answer within 60 s"):
        await call("GET", "/json", script, limit_s=60)
    assert asyncio.get_running_loop().time() == 660


@pytest.mark.parametrize(
    ("what", "kind", "status", "code", "detail", "field"),
    [
        ("seating", PlacementUnknown, 428, "seating_unknown", "which seating?", None),
        ("bound", StrataError, 422, "out_of_bound", "too much", "delta.w"),
        ("conflict", StrataError, 409, "conflict", "not now", None),
    ],
)
async def test_a_remote_error_is_raised_with_its_status_code_and_field(
    what: str, kind: type[StrataError], status: int, code: str, detail: str, field: str | None
) -> None:
    script = Scripted()
    with pytest.raises(kind) as caught:
        await post(f"/raise/{what}", script)
    error = caught.value
    assert (error.status, error.code, error.detail, error.field) == (status, code, detail, field)
    assert script.seen == 1  # any answer ends the retries


async def test_a_redirect_is_not_followed() -> None:
    for asking in (post("/elsewhere"), call("POST", "/elsewhere")):
        with pytest.raises(StrataError, match="status 307") as caught:
            await asking
        assert (caught.value.status, caught.value.code) == (502, "remote")


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"3", b'{"detail":1}', b"[" * 100_000, b"\xff", b'{"detail":"x","code":"y","field":{}}'],
)
def test_an_error_without_a_problem_document_is_still_an_error_and_a_long_one_truncated(body: bytes) -> None:
    error = remote_error(500, bytearray(body), URL)
    assert (error.status, error.field) == (500, None)
    long = json.dumps({"detail": "x" * 10_000, "code": "y" * 1000, "field": "z" * 1000}).encode()
    error = remote_error(400, bytearray(long), URL)
    assert (len(error.detail), len(error.code), len(error.field or "")) == (2000, 64, 200)


def test_a_body_of_unknown_length_is_read_up_to_the_limit() -> None:
    arriving = Arriving(None, limit=10)
    for piece in (b"a", b"bcd", b"", b"efghij"):
        arriving.add(piece)
    assert bytes(arriving.whole({}, "answer")) == b"abcdefghij"
    with pytest.raises(TooLarge, match="more than 10 bytes"):
        arriving.add(b"k")


async def test_answers_that_are_too_large_are_not_read() -> None:
    with pytest.raises(TooLarge, match="the limit is 100"):
        await post("/plus", answering(200, GOOD), max_bytes=100)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 6000

    async def pour(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=endless())

    with pytest.raises(TooLarge, match="more than 100"):
        await post("/plus", Scripted(then=pour), max_bytes=100)
    with pytest.raises(TooLarge, match="more than"):
        await call("GET", "/json", Scripted(then=pour))


async def test_garbage_and_short_answers_are_refused() -> None:
    with pytest.raises(WireError):
        await post("/plus", answering(200, b"garbage"))
    short = answering(200, b"abc", **{"content-length": "9"})
    with pytest.raises(Garbled, match="broke off after 3 of 9"):
        await post("/plus", short)
    assert short.seen == client_module.GARBLED_TIMES


# ---- small JSON


async def test_json_is_exchanged_and_its_errors_are_named() -> None:
    assert await call("GET", "/json") == {"a": 1}
    assert await call("DELETE", "/json") is None, "of an empty answer"
    with pytest.raises(StrataError, match="not now") as caught:
        await call("POST", "/raise/conflict")
    assert caught.value.status == 409
    with pytest.raises(Unreachable, match="the cloud: ConnectError: nobody listens"):
        await call("GET", "/json", Scripted(breaks=1))
    with pytest.raises(WireError, match="the cloud answered with no JSON"):
        await call("GET", "/json", answering(200, b"<html>"))


def test_measured_seconds_in_a_header_are_checked() -> None:
    texts = ("1.5", "0", "-1", "nan", "1e400", "soon")
    assert [bodies.testing_s({order_headers.TESTING_HEADER: text}) for text in texts] == [1.5, 0, 0, 0, 0, 0]
    assert bodies.testing_s({}) == 0


# ---- the wait for a live peer


@in_simulated_time
async def test_a_peer_is_checked_repeatedly_while_its_answer_is_awaited() -> None:
    done, check = asyncio.Event(), Mock()
    check.side_effect = lambda: done.set() if check.call_count == 3 else None
    assert await while_alive(done.wait(), check)
    assert check.call_count == 3
    assert asyncio.get_running_loop().time() == 3 * client_module.POLL_S


@in_simulated_time
async def test_a_request_to_a_lost_peer_is_cancelled_and_its_own_error_passes() -> None:
    asked, lost = asyncio.get_running_loop().create_future(), Mock(side_effect=Lost("silent"))
    with pytest.raises(Lost, match="silent"):
        await while_alive(asyncio.wait_for(asked, None), lost)
    assert asked.cancelled()
    with pytest.raises(Busy, match="full"):
        await while_alive(AsyncMock(side_effect=Busy("full"))(), lost)


# ---- pauses between attempts and between heartbeats


def test_heartbeats_slow_down_after_failures_to_five_times_their_interval_at_most() -> None:
    assert pause_s(0.3, 0) == 0.3
    pauses = [pause_s(0.3, failures) for failures in range(1, 50)]
    assert min(pauses) >= 0.3
    assert max(pauses) == 5 * 0.3
    assert 3.5 <= pause_s(2.0, 49) <= 6.5  # the longest pause between attempts, 5 s, with its jitter


def test_the_backoff_grows_up_to_a_limit_by_a_generator_of_its_own() -> None:
    pauses = []
    for _ in range(2):
        random.seed(7)
        before = random.getstate()
        pauses.append([retry.backoff(attempt) for attempt in range(50)])
        assert random.getstate() == before
        for wait, base in zip(pauses[-1], [*retry.BACKOFF_S, *[5.0] * 44], strict=True):
            assert 0.7 * base <= wait <= 1.3 * base
    assert pauses[0] != pauses[1]
