"""Access to the dashboard: by session if there is a token, else by network, and never from pages of other sites."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest
from fastapi import FastAPI, Request
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from cloud_server.dashboard.login import COOKIE, MAX_SESSIONS, SESSION, Login, Sessions
from cloud_server.dashboard.viewer import Viewer, viewer_of
from cloud_server.users.tokens import Tokens, digest_of
from cloud_server.users.user import User
from shared.core.errors import Forbidden, Unauthorised
from shared.service.body_limit import ANONYMOUS_BYTES, BodyLimit

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
HTML = {"accept": "text/html"}


async def guarded_app(scope: Scope, receive: Receive, send: Send) -> None:
    """The guarded app: answers `inside`."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


async def no_body() -> Message:
    """Fails if the body is read."""
    raise AssertionError


def visitor(login: Login, host: str = "127.0.0.1:8000", address: str = "127.0.0.1") -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(login, client=(address, 1234))
    return httpx2.AsyncClient(transport=transport, base_url=f"http://{host}")


async def websocket_reply(login: Login, **headers: str) -> str:
    sent: list[str] = []

    async def send(message) -> None:
        sent.append(message["type"])

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await login(
        {"type": "websocket", "path": "/ui/_nicegui_ws/", "headers": raw, "client": ("127.0.0.1", 1)}, no_body, send
    )
    return sent[0]


async def test_without_a_token_network_and_host_decide() -> None:
    login = Login(guarded_app, None, LOOPBACK)
    for host in ("127.0.0.1:8000", "localhost", "[::1]:80", "cloud:8000"):
        assert (await visitor(login, host).get("/ui/")).text == "inside", host
    for host in ("evil.example", "evil.example:8000", "[::1"):
        refused = await visitor(login).get("/ui/", headers={"host": host})
        assert (refused.status_code, refused.text.startswith("Host: ")) == (403, True), host
    allowing = Login(guarded_app, None, LOOPBACK, ["lab.example"])
    assert (await visitor(allowing, "lab.example:8000").get("/ui/")).text == "inside"
    assert (await visitor(allowing, "evil.example").get("/ui/")).status_code == 403
    assert (await visitor(login, address="8.8.8.8").get("/ui/")).status_code == 403
    assert (await visitor(login, "evil.example", "8.8.8.8").get("/runs")).text == "inside", "the API checks by itself"


@pytest.mark.parametrize("token", [None, "secret"])
async def test_other_sites_may_link_to_the_dashboard_but_not_send_requests(token: str | None) -> None:
    login = Login(guarded_app, token, LOOPBACK)
    async with visitor(login) as client:
        for headers in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil"}):
            assert (await client.get("/ui/", headers=headers)).status_code == 403
            assert (await client.post("/ui/login", headers=headers, data={"token": "secret"})).status_code == 403
        linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", **HTML}
        assert (await client.get("/ui/", headers=linked)).status_code == (200 if token is None else 303)
        assert (await client.post("/ui/", headers=linked)).status_code == 403


async def test_websockets_follow_the_same_rules() -> None:
    host = "127.0.0.1:8000"
    login = Login(guarded_app, None, LOOPBACK)
    assert await websocket_reply(login, host=host, origin=f"http://{host}") == "websocket.accept"
    assert await websocket_reply(login, host=host, origin="http://evil.example") == "websocket.close"
    assert await websocket_reply(login, host=host, referer="http://evil.example/") == "websocket.close"
    assert await websocket_reply(login, host="lab:443", origin="https://lab") == "websocket.accept", "behind a proxy"
    with_token = Login(guarded_app, "secret", LOOPBACK)
    assert await websocket_reply(with_token, host=host, origin=f"http://{host}") == "websocket.close"
    session = with_token.sessions.begin()
    cookie = f"{COOKIE}={session}"
    assert await websocket_reply(with_token, host=host, origin=f"http://{host}", cookie=cookie) == "websocket.accept"


async def test_login_with_the_token_and_logout() -> None:
    login = Login(guarded_app, "secret", LOOPBACK)
    async with visitor(login, "strata.example", "8.8.8.8") as client:
        redirect = await client.get("/ui/runs/r1", headers=HTML)
        assert (redirect.status_code, redirect.headers["location"]) == (303, "/ui/login?next=/ui/runs/r1")
        assert (await client.get("/ui/x.js")).status_code == 401
        form = await client.get(redirect.headers["location"])
        assert 'action="/ui/login?next=/ui/runs/r1"' in form.text
        wrong = await client.post("/ui/login", data={"token": "guess"})
        assert (wrong.status_code, "not the API token" in wrong.text, "set-cookie" in wrong.headers) == (
            401,
            True,
            False,
        )
        right = await client.post("/ui/login?next=/ui/runs/r1", data={"token": " secret "})
        assert (right.status_code, right.headers["location"]) == (303, "/ui/runs/r1")
        cookie = right.headers["set-cookie"].lower()
        assert all(attribute in cookie for attribute in ("httponly", "samesite=strict", "path=/ui"))
        assert "secret" not in cookie
        assert (await client.get("/ui/runs/r1")).text == "inside"
        assert (await client.post("/ui/logout")).status_code == 303
        assert (await client.get("/ui/runs/r1")).status_code == 401


@pytest.mark.parametrize(
    "after", ["//evil", "https://evil", "/ui//evil", "/ui/\\evil", "/runs", "/ui/logout", '/ui/"><b>']
)
async def test_login_redirects_only_within_the_dashboard(after: str) -> None:
    login = Login(guarded_app, "secret", LOOPBACK)
    async with visitor(login) as client:
        answer = await client.post("/ui/login", params={"next": after}, data={"token": "secret"})
        assert answer.headers["location"] in ("/ui/", "/ui/%22%3E%3Cb%3E")
        assert "<b>" not in (await client.get("/ui/login", params={"next": after})).text


async def test_login_returns_to_the_requested_page_with_its_query() -> None:
    async with visitor(Login(guarded_app, "secret", LOOPBACK)) as client:
        redirect = await client.get("/ui/compare?run=r1&run=r2", headers=HTML)
        form = await client.get(redirect.headers["location"])
        assert 'action="/ui/login?next=/ui/compare%3Frun%3Dr1%26run%3Dr2"' in form.text
        right = await client.post(redirect.headers["location"], data={"token": "secret"})
        assert right.headers["location"] == "/ui/compare?run=r1&run=r2"


async def test_session_path_reports_whether_the_session_is_valid() -> None:
    assert (await visitor(Login(guarded_app, None, LOOPBACK)).get(SESSION)).status_code == 204
    async with visitor(Login(guarded_app, "secret", LOOPBACK)) as client:
        assert (await client.get(SESSION)).status_code == 401
        await client.post("/ui/login", data={"token": "secret"})
        assert (await client.get(SESSION)).status_code == 204


async def test_a_user_logs_in_with_their_token_and_is_out_once_that_is_removed() -> None:
    seen: list[Viewer] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(viewer_of(HTTPConnection(scope)))
        await guarded_app(scope, receive, send)

    alice = User(name="alice", token_sha256=digest_of("hers"), created_at="2026-11-30")
    tokens = Tokens()
    tokens.put({"alice": alice})
    login = Login(app, "secret", LOOPBACK, tokens=tokens)
    async with visitor(login) as user, visitor(login) as admin:
        assert (await user.post("/ui/login", data={"token": "hers"})).status_code == 303
        assert (await admin.post("/ui/login", data={"token": "secret"})).status_code == 303
        for client in (user, admin):
            assert (await client.get("/ui/")).text == "inside"
        assert [viewer.name for viewer in seen] == ["alice", "admin"]
        assert [viewer.caller() for viewer in seen] == ["alice", None]
        assert [[viewer.may_change(owner) for owner in ("alice", "bob", None)] for viewer in seen] == [
            [True, False, False],
            [True, True, True],
        ]
        seen[1].check_admin()
        with pytest.raises(Forbidden, match="not the user alice"):
            seen[0].check_admin()

        tokens.put({"alice": alice.replace(token_sha256=digest_of("another"))})
        with pytest.raises(Unauthorised, match="the token of alice has been removed"):
            seen[0].caller()  # as an open page does
        assert (await user.get("/ui/")).status_code == 401
        assert (await user.post("/ui/login", data={"token": "hers"})).status_code == 401
        assert (await admin.get("/ui/")).text == "inside"


async def test_the_websocket_of_an_open_page_ends_with_the_session() -> None:
    alice = User(name="alice", token_sha256=digest_of("hers"), created_at="2026-11-30")
    tokens, passed = Tokens(), list[Receive]()
    tokens.put({"alice": alice})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(receive)

    async def click() -> Message:
        return {"type": "websocket.receive", "text": "a click"}

    async def unsent(message: Message) -> None:
        raise AssertionError

    login = Login(app, "secret", LOOPBACK, tokens=tokens)
    ends: list[tuple[User | None, Callable[[str], None]]] = [
        (alice, lambda session: tokens.put({})),
        (None, login.sessions.end),
    ]
    for user, end in ends:
        session = login.sessions.begin(user)
        raw = [(b"host", b"127.0.0.1:8000"), (b"cookie", f"{COOKIE}={session}".encode())]
        scope = {"type": "websocket", "path": "/ui/_nicegui_ws/", "headers": raw, "client": ("127.0.0.1", 1)}
        await login(scope, click, unsent)
        assert (await passed[-1]())["type"] == "websocket.receive"
        end(session)
        assert (await passed[-1]())["type"] == "websocket.disconnect"


async def test_large_uploads_need_a_session() -> None:
    def client_of(app: FastAPI) -> httpx2.AsyncClient:
        return visitor(Login(BodyLimit(app, tokens=("secret", "tier"), limit=2**20), "secret", LOOPBACK))

    app, upload = FastAPI(), "/ui/_nicegui/client/c/upload/7"

    @app.post("/{path:path}")
    async def take(request: Request) -> int:
        """Returns the size of the body."""
        return len(await request.body())

    async with client_of(app) as client:
        large = b"x" * (ANONYMOUS_BYTES + 1)
        for cookie in ({}, {"cookie": f"{COOKIE}=a guess"}):
            assert (await client.post(upload, content=large, headers=cookie)).status_code == 401
        await client.post("/ui/login", data={"token": "secret"})
        session = {"cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
        assert (await client.post(upload, content=large)).json() == len(large)
        assert (await client.post(upload, content=b"x" * (2**20 + 1))).status_code == 413
        assert (await client.post("/runs", content=large, headers=session)).status_code == 401, "only for the dashboard"
        for path in ("//ui/x", "/uix"):
            assert (await client.post(path, content=large, headers=session)).status_code == 401, path
        evil = {"sec-fetch-site": "cross-site"}
        assert (await client.post(upload, content=large, headers=evil)).status_code == 403
        await client.post("/ui/logout")
        assert (await client.post(upload, content=large, headers=session)).status_code == 401


async def test_only_a_small_form_with_a_length_is_read() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"token=secret"
        raise AssertionError("read without a limit")

    async with visitor(Login(guarded_app, "secret", LOOPBACK)) as client:
        assert (await client.post("/ui/login", content=endless())).status_code == 400
        for length in (b"-1", b"many", b"9" * 30, b"\xb2"):
            assert (await client.post("/ui/login", headers={b"content-length": length})).status_code == 400
        assert (await client.post("/ui/login", content=b"token=" + b"x" * 5000)).status_code == 400
        assert (await client.put("/ui/login", content=b"")).status_code == 400


def test_number_of_sessions_is_limited_and_logout_ends_one() -> None:
    sessions = Sessions(Tokens())
    first = sessions.begin()
    assert sessions.is_valid(first)
    others = [sessions.begin() for _ in range(MAX_SESSIONS)]
    assert not sessions.is_valid(first)
    assert sessions.is_valid(others[0])
    sessions.end(others[0])
    assert not sessions.is_valid(others[0])


def test_the_sessions_of_a_user_end_no_other_ones() -> None:
    alice, bob = (User(name=name, token_sha256=digest_of(name), created_at="2026-11-30") for name in ("alice", "bob"))
    tokens = Tokens()
    tokens.put({"alice": alice, "bob": bob})
    sessions = Sessions(tokens)
    theirs = [sessions.begin(), sessions.begin(bob)]
    many = [sessions.begin(alice) for _ in range(MAX_SESSIONS + 1)]
    assert [sessions.is_valid(each) for each in (*theirs, many[0], many[1])] == [True, True, False, True]


@pytest.mark.parametrize("entered", ["", " ", "s", "secre", "ecret", "secrets", "Secret", "secret\0", "secret,secret"])
async def test_login_needs_the_whole_token_and_nothing_else(entered: str) -> None:
    async with visitor(Login(guarded_app, "secret", LOOPBACK), "strata.example", "8.8.8.8") as client:
        refused = await client.post("/ui/login", data={"token": entered})
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        assert (await client.get("/ui/runs/r1", headers=HTML)).status_code == 303
