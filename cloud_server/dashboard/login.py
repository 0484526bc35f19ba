"""Access control of the dashboard: by login with the API token or a user's or, if none is set, by the client's network.

A browser cannot send a bearer token with every image and websocket. The token is therefore entered once; after that a
session cookie stands for it. The cookie is random, SameSite=Strict and HttpOnly; sessions are kept in memory only. The
session of a user ends with the user's token, and with a session the websockets of the pages that it has opened.
"""

from __future__ import annotations

import hmac
import html
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.resources import files
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloud_server.dashboard.viewer import VIEWER, Viewer
from cloud_server.users.tokens import Tokens
from cloud_server.users.user import User
from shared.core.addresses import Network, inside
from shared.core.errors import Forbidden, Throttled
from shared.service.auth import SAFE, check_host, check_site
from shared.service.body_limit import KNOWN
from shared.service.throttle import Throttle

PREFIX = "/ui"
SESSION = f"{PREFIX}/session"
"""Path that answers 204 if the session of the request is valid, else 401."""
COOKIE = "strata_session"
IDLE_LIMIT_S = 12 * 3600.0
"""A session ends after this many seconds without a request or a message of an open page."""
TRIES_PER_MINUTE = 10
"""Wrong tokens that an address may enter in a minute."""
MAX_SESSIONS = 1000
"""With more sessions of a user, or of the administrator, than this, their least recently used one ends."""
MAX_FORM_BYTES = 4096
"""Largest body of the login form."""


class Sessions:
    """The login sessions of this process.

    Args:
        tokens: the tokens of users.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self._last_used: OrderedDict[str, float] = OrderedDict()
        self._users: dict[str, User] = {}

    def begin(self, user: User | None = None) -> str:
        """Start a session of a user, or of the administrator, and return its random id."""
        session = secrets.token_urlsafe(32)
        self._last_used[session] = time.monotonic()
        if user is not None:
            self._users[session] = user
        own = [each for each in self._last_used if _name(self.user(each)) == _name(user)]
        for oldest in own[:-MAX_SESSIONS]:
            self.end(oldest)
        return session

    def user(self, session: str) -> User | None:
        """The user whose session it is, None for the administrator."""
        return self._users.get(session)

    def is_valid(self, session: str) -> bool:
        """Whether the session exists and has not expired; if so, its idle time starts again."""
        last_used, user = self._last_used.pop(session, None), self._users.get(session)
        is_void = user is not None and not self.tokens.holds(user)
        if last_used is None or is_void or time.monotonic() - last_used > IDLE_LIMIT_S:
            self.end(session)
            return False
        self._last_used[session] = time.monotonic()
        return True

    def end(self, session: str) -> None:
        """Log out."""
        self._last_used.pop(session, None)
        self._users.pop(session, None)


def _name(user: User | None) -> str | None:
    return user.name if user else None


class Login:
    """Middleware that guards everything under `/ui`, websockets included.

    Args:
        app: the guarded app.
        token: the API token; None means development mode.
        networks: from which networks clients may connect in development mode.
        hosts: further allowed `Host` names in development mode (`shared.service.auth.check_host`).
        clock: monotonic seconds, for the throttle of wrong tokens.
        tokens: the tokens of users, who may log in with them where an API token is set.

    The scope of a request that is passed on has the `Viewer`.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        networks: list[Network],
        hosts: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        tokens: Tokens | None = None,
    ) -> None:
        self.tokens = tokens or Tokens()
        self.app, self.token, self.networks, self.hosts = app, token, networks, hosts
        self.throttle = Throttle(per_minute=TRIES_PER_MINUTE, in_all=10 * TRIES_PER_MINUTE, clock=clock)
        self.sessions = Sessions(self.tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass allowed requests on; answer all others."""
        path = scope.get("path", "")
        if scope["type"] not in ("http", "websocket") or not (path == PREFIX or path.startswith(f"{PREFIX}/")):
            await self.app(scope, receive, send)
            return
        response = await self._response(scope, receive)
        if response is None and scope["type"] == "websocket" and self.token is not None:
            await self.app(scope, self._while_valid(scope, receive), send)
        elif response is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "not allowed"})
        else:
            await response(scope, receive, send)

    def _while_valid(self, scope: Scope, receive: Receive) -> Receive:
        """Returns what receives from a websocket; to the app, its browser leaves as soon as the session has ended."""
        session = HTTPConnection(scope).cookies.get(COOKIE, "")

        async def checked() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive" and not self.sessions.is_valid(session):
                return {"type": "websocket.disconnect", "code": 1008}
            return message

        return checked

    async def _response(self, scope: Scope, receive: Receive) -> Response | None:
        """The response of the middleware itself (login, logout, refusal); None if the request is passed on."""
        connection = HTTPConnection(scope)
        try:
            _check_site(scope, connection.headers)
        except Forbidden as refusal:
            return PlainTextResponse(refusal.detail, refusal.status)
        if self.token is None:
            host = connection.client.host if connection.client else None
            if not inside(host, self.networks):
                return PlainTextResponse("in development mode only clients in the allowed networks may connect", 403)
            try:
                check_host(connection.headers.get("host", ""), self.hosts)
            except Forbidden as refusal:
                return PlainTextResponse(f"Host: {refusal.detail}", refusal.status)
            responses = {f"{PREFIX}/login": RedirectResponse(PREFIX), SESSION: Response(status_code=204)}
            return responses.get(scope["path"])
        session = connection.cookies.get(COOKIE, "")
        if scope["type"] == "http" and scope["path"] == f"{PREFIX}/login":
            return await self._login(Request(scope, receive))
        if scope["type"] == "http" and scope["path"] == f"{PREFIX}/logout" and scope["method"] == "POST":
            self.sessions.end(session)
            return RedirectResponse(f"{PREFIX}/login", 303)
        if self.sessions.is_valid(session):
            scope[KNOWN], scope[VIEWER] = True, Viewer(self.sessions.user(session), self.tokens)
            return Response(status_code=204) if scope["path"] == SESSION else None
        if scope["type"] == "http" and scope["method"] == "GET" and "text/html" in connection.headers.get("accept", ""):
            return RedirectResponse(f"{PREFIX}/login?next={quote(_path_and_query(scope))}", 303)
        return PlainTextResponse("log in first", 401)

    async def _login(self, request: Request) -> Response:
        """GET: the login form. POST: starts a session, or the form with an error."""
        target = _dashboard_path(request.query_params.get("next", ""))
        if request.method == "GET":
            return _form(target)
        if request.method != "POST" or not _is_small(request.headers):
            return PlainTextResponse(f"only the login form is accepted: POST, at most {MAX_FORM_BYTES} bytes", 400)
        entered = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0]
        user = self.tokens.user(entered.strip())
        is_right = hmac.compare_digest(entered.strip().encode(), (self.token or "").encode()) or user is not None
        try:
            if not self.throttle.admit(request.scope.get("client"), is_right=is_right):
                return _form(target, "This is not the API token (STRATA_API_TOKEN), nor a user's token.", 401)
        except Throttled as error:
            answer = _form(target, error.detail, error.status)
            answer.headers["retry-after"] = str(error.retry_after_s)
            return answer
        response = RedirectResponse(target, 303)
        secure = request.url.scheme == "https"
        session = self.sessions.begin(user)
        response.set_cookie(COOKIE, session, path=PREFIX, httponly=True, samesite="strict", secure=secure)
        return response


def _is_small(headers: Headers) -> bool:
    """Whether Content-Length is given and fits a login form. A body without it could be endless."""
    length = headers.get("content-length", "")
    is_number = length.isascii() and length.isdigit() and len(length) < 10
    return is_number and int(length) <= MAX_FORM_BYTES and "transfer-encoding" not in headers


def _path_and_query(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{scope['path']}?{query}" if query else str(scope["path"])


def _check_site(scope: Scope, headers: Headers) -> None:
    """Refuses what a page of another site sends, but not that a user follows its link to the dashboard."""
    if headers.get("sec-fetch-mode") != "navigate" or scope.get("method") != "GET":
        check_site(headers, changes=scope.get("method") not in SAFE)


def _dashboard_path(path: str) -> str:
    """The path if it leads to a page of the dashboard, else the start page: login never redirects to another site."""
    is_inside = path.startswith(f"{PREFIX}/") and "\\" not in path and "//" not in path
    return path if is_inside and not path.startswith((f"{PREFIX}/login", f"{PREFIX}/logout")) else PREFIX + "/"


def _form(target: str, error: str = "", status: int = 200) -> Response:
    page = files("cloud_server.dashboard").joinpath("login.html").read_text("utf-8")
    text = page.replace("$ACTION", f"{PREFIX}/login?next={quote(target)}").replace("$ERROR", html.escape(error))
    policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    headers = {"cache-control": "no-store", "content-security-policy": policy}
    return HTMLResponse(text, status, headers)
