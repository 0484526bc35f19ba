"""Who may see the dashboard: who logged in with the API token or, where none is set, who is in the allowed networks.

A browser cannot send a bearer token with every picture and websocket, so the token is shown once and a session's cookie
stands for it: random, kept in memory alone, bound to this site (SameSite=Strict), unreadable to scripts.
"""

from __future__ import annotations

import hmac
import html
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from importlib.resources import files
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.core.errors import Forbidden
from shared.service.auth import Network, check_host, inside
from shared.service.body_limit import KNOWN

PREFIX = "/ui"
SESSION = f"{PREFIX}/session"
"""Says to a page whether its session still holds, 204, or not, 401."""
COOKIE = "strata_session"
LASTS_S = 12 * 3600.0
MOST_SESSIONS = 1000
_FORM_BYTES = 4096


class Sessions:
    """Who has logged in to this process; a session ends when it was not used for half a day."""

    def __init__(self) -> None:
        self._used: OrderedDict[str, float] = OrderedDict()

    def begin(self) -> str:
        """A new session; of very many the one not used for longest ends."""
        name = secrets.token_urlsafe(32)
        self._used[name] = time.monotonic()
        while len(self._used) > MOST_SESSIONS:
            self._used.popitem(last=False)
        return name

    def holds(self, name: str) -> bool:
        """Whether there is that session; it is used by that."""
        used = self._used.pop(name, None)
        if used is None or time.monotonic() - used > LASTS_S:
            return False
        self._used[name] = time.monotonic()
        return True

    def end(self, name: str) -> None:
        """Log out."""
        self._used.pop(name, None)


class Login:
    """Stands before everything under `/ui`, pages and websockets alike.

    Args:
        app: what is behind.
        token: the API token; None: development mode.
        networks: who may come in then.
        hosts: by which further names (`shared.hosts`).
    """

    def __init__(self, app: ASGIApp, token: str | None, networks: list[Network], hosts: Sequence[str] = ()) -> None:
        self.app, self.token, self.networks, self.hosts = app, token, networks, hosts
        self.sessions = Sessions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on who may pass."""
        path = scope.get("path", "")
        if scope["type"] not in ("http", "websocket") or not (path == PREFIX or path.startswith(f"{PREFIX}/")):
            await self.app(scope, receive, send)
            return
        refused = await self._answer(scope, receive)
        if refused is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "not allowed"})
        else:
            await refused(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """The door's own answer, None if it lets through."""
        asked = HTTPConnection(scope)
        if _foreign(scope, asked.headers):
            return PlainTextResponse("pages of other sites may not ask", 403)
        if self.token is None:
            host = asked.client.host if asked.client else None
            if not inside(host, self.networks):
                return PlainTextResponse("in development mode only the allowed networks may ask", 403)
            try:
                check_host(asked.headers.get("host", ""), self.hosts)
            except Forbidden as refusal:
                return PlainTextResponse(f"Host: {refusal.detail}", refusal.status)
            own = {f"{PREFIX}/login": RedirectResponse(PREFIX), SESSION: Response(status_code=204)}
            return own.get(scope["path"])
        session = asked.cookies.get(COOKIE, "")
        if scope["type"] == "http" and scope["path"] == f"{PREFIX}/login":
            return await self._login(Request(scope, receive))
        if scope["type"] == "http" and scope["path"] == f"{PREFIX}/logout" and scope["method"] == "POST":
            self.sessions.end(session)
            return RedirectResponse(f"{PREFIX}/login", 303)
        if self.sessions.holds(session):
            scope[KNOWN] = True
            return Response(status_code=204) if scope["path"] == SESSION else None
        if scope["type"] == "http" and scope["method"] == "GET" and "text/html" in asked.headers.get("accept", ""):
            return RedirectResponse(f"{PREFIX}/login?next={quote(_asked_for(scope))}", 303)
        return PlainTextResponse("log in first", 401)

    async def _login(self, request: Request) -> Response:
        """The form, or what came of it."""
        after = _within(request.query_params.get("next", ""))
        if request.method == "GET":
            return _form(after)
        if request.method != "POST" or not _is_small(request.headers):
            return PlainTextResponse("a form of a few bytes, by POST", 400)
        shown = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0]
        if not hmac.compare_digest(shown.strip().encode(), (self.token or "").encode()):
            return _form(after, "This is not the API token (STRATA_API_TOKEN).", 401)
        answer = RedirectResponse(after, 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, self.sessions.begin(), path=PREFIX, httponly=True, samesite="strict", secure=secure)
        return answer


def _is_small(headers: Headers) -> bool:
    """Whether a body says that it is a form of the login. One that does not say how long it is could be without end."""
    claimed = headers.get("content-length", "")
    plain = claimed.isascii() and claimed.isdigit() and len(claimed) < 10
    return plain and int(claimed) <= _FORM_BYTES and "transfer-encoding" not in headers


def _asked_for(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{scope['path']}?{query}" if query else str(scope["path"])


def _foreign(scope: Scope, headers: Headers) -> bool:
    """Whether a page of another site asks. Following a link is no asking: it only shows a page."""
    if headers.get("sec-fetch-mode") == "navigate" and scope.get("method") == "GET":
        return False
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


def _within(path: str) -> str:
    """A path of the dashboard, whatever was asked for."""
    inside_it = path.startswith(f"{PREFIX}/") and "\\" not in path and "//" not in path
    return path if inside_it and not path.startswith((f"{PREFIX}/login", f"{PREFIX}/logout")) else PREFIX + "/"


def _form(after: str, error: str = "", status: int = 200) -> Response:
    page = files("cloud_server.dashboard").joinpath("login.html").read_text("utf-8")
    text = page.replace("$ACTION", f"{PREFIX}/login?next={quote(after)}").replace("$ERROR", html.escape(error))
    policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
    headers = {"cache-control": "no-store", "content-security-policy": policy}
    return HTMLResponse(text, status, headers)
