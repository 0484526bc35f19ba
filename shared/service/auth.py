"""Who may call a tier: callers with its token or, while no token is set (development mode), of the allowed networks.

A cloud knows further tokens, one for each of its users; whose a request is stands in its state (`user_of`).

In development mode a web page must be kept out that a browser in an allowed network shows. The browser's headers give
away pages of other sites: `Sec-Fetch-Site` where the tier is reached over HTTPS or as localhost, else `Origin` or
`Referer`, which name another host than `Host`. They do not where a stranger lets his own domain name resolve to this
machine (DNS rebinding): his page then calls a tier as its own site, from an address that is trusted. He cannot change
the `Host` header, which carries his name; so only names that no stranger can own are answered.

Starlette's `TrustedHostMiddleware` compares `Host` with a list of names, which can express neither "any IP address" nor
"any name without a dot"; so the check is made here.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from fastapi import Depends, Request

from shared.core.addresses import LOOPBACK, Network, inside, outside
from shared.core.errors import Forbidden, Unauthorised
from shared.service.throttle import Throttle

Guard = Callable[[Request], Awaitable[None]]
"""Checks a request before its route runs; raises an error if the caller may not call it."""
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.~-]+)?)\]|(?P<name>[^\s:/?#@\\\[\]]*))(?::\d*)?")
_LOCAL = (".localhost", ".local", ".internal", ".home.arpa")
"""Ends of names that nobody can own on the internet (RFC 6761, 6762 and 8375, and ICANN's `internal`)."""
SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Methods that change nothing (RFC 9110)."""
_PORTS = {"http": 80, "https": 443}
EXTEND = "add its network to ALLOWED_NETWORKS (as CLOUD_ALLOWED_NETWORKS)"
USER = "user"
"""Key of the state of an ASGI scope: the name of the user who calls, None for the administrator."""
_QUOTED = 100
"""Characters of a caller's text that a message quotes."""


def guard(
    token: str | None,
    networks: Sequence[Network],
    what: str,
    also: str | None = None,
    hosts: Sequence[str] = (),
    throttle: Throttle | None = None,
    user_with: Callable[[str], str | None] = lambda token: None,
) -> Guard:
    """Returns the guard of routes that refuses callers which may not call them.

    Args:
        token: the token that callers must show; None or empty means development mode.
        networks: the networks whose callers are let in in development mode.
        what: the token's name in a refusal.
        also: a second token that is accepted, where one is set.
        hosts: further names that are accepted as `Host` in development mode, as `host_name` gives them.
        throttle: counts wrong tokens, also those shown to others that share it.
        user_with: returns the name of the user whose token it is, None if it is nobody's.

    The guard raises `Unauthorised` for a missing or wrong token, `Throttled` after many wrong ones, `Forbidden` in
    development mode. It is a coroutine
    function: FastAPI calls plain functions in threads, which takes longer than the check itself.
    """

    counted = throttle or Throttle()

    async def check(request: Request) -> None:
        text = bearer(request)
        shown, user = text.encode(), user_with(text) if text else None
        is_right = any(hmac.compare_digest(shown, known.encode()) for known in (token, also) if known)
        if token and shown and counted.admit(request.client, is_right=is_right or user is not None):
            setattr(request.state, USER, user)
            return
        if not token and is_right:
            return
        if not token:
            address = request.client.host if request.client else None
            if not inside(address, networks):
                remedy = "set tokens" if networks == LOOPBACK else f"set tokens, or {EXTEND}"
                raise Forbidden(f"in development mode (no {what} token) {outside(address, networks, remedy)}")
            check_site(request.headers, changes=request.method not in SAFE)
            check_host(request.headers.get("host", ""), hosts)
        else:
            raise Unauthorised(f"the {what} token is missing or wrong")

    return check


def guarded(name: str) -> Any:
    """Returns the dependency of routes that are guarded by `app.state.guards[name]` of the app that answers.

    A router with it is made once, for all apps of a process: FastAPI takes a millisecond for each route.
    """

    async def check(request: Request) -> None:
        await request.app.state.guards[name](request)

    return Depends(check)


def user_of(request: Request) -> str | None:
    """Returns the user who sent a request that a guard has let in, None for the administrator."""
    found: str | None = getattr(request.state, USER, None)
    return found


async def only_admin(request: Request) -> None:
    """Refuses a user's request; a dependency of routes behind a guard.

    Raises:
        Forbidden: names the user.
    """
    if (user := user_of(request)) is not None:
        raise Forbidden(f"only the administrator may do this, not the user {user}")


ONLY_ADMIN: Any = Depends(only_admin)
"""The dependency of routes that the administrator alone may call."""


def bearer(request: Request) -> str:
    """Returns the bearer token of a request, empty if it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


# ---- pages of other sites


def check_site(headers: Mapping[str, str], *, changes: bool) -> None:
    """Refuses a request that a page of another site sent. Programs send none of these headers and pass.

    The page's own site is the one that `Host` names, so a proxy in front has to pass `Host` on unchanged. Schemes are
    not compared, since the proxy may end TLS.

    Args:
        headers: of the request.
        changes: whether the request may change something. Then `Referer` is looked at too, where `Origin` is missing;
            of other requests it is not, since a link on another site leads to a page.

    Raises:
        Forbidden: naming the header as the field.
    """
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise _other_site("Sec-Fetch-Site", headers["sec-fetch-site"])
    name = "Origin" if "origin" in headers else "Referer"
    page = headers.get(name.lower())
    if page is not None and (name == "Origin" or changes) and not _is_page_of(page, headers.get("host", "")):
        raise _other_site(name, page)


def _other_site(name: str, value: str) -> Forbidden:
    return Forbidden(f"{name} {value[:_QUOTED]!r}: web pages of other sites are not answered", field=name)


def _is_page_of(page: str, host: str) -> bool:
    """Whether a page's address, or its origin, has this host and port. `null`, a page of no site, has not."""
    try:
        parts = urlsplit(page)
        port = _PORTS.get(parts.scheme)
        own = urlsplit(f"{parts.scheme}://{host}")
        return parts.hostname is not None and (parts.hostname, parts.port or port) == (own.hostname, own.port or port)
    except ValueError:
        return False


# ---- the Host header


def check_host(host: str, allowed: Sequence[str] = ()) -> None:
    """Refuses a request whose Host may be the name of another site.

    Raises:
        Forbidden: naming the field `Host`.
    """
    if not is_trusted_host(host, allowed):
        raise Forbidden(
            f"in development mode requests to the name {host[:_QUOTED]!r} are not answered, which may be another "
            "site's: use an address or a name without dots, add it to ALLOWED_HOSTS (as CLOUD_ALLOWED_HOSTS), or "
            "set tokens",
            field="Host",
        )


def is_trusted_host(host: str, allowed: Sequence[str] = ()) -> bool:
    """Whether a Host is an IP address, a name that no stranger can own, or one of the allowed names.

    Names without a dot belong to services of a container network or to machines of the local one. A request without
    Host passes: browsers always send one.

    Args:
        host: the header, with or without a port.
        allowed: further names, as `host_name` gives them.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found["six"] or found["name"]).removesuffix(".").lower()
    if found["six"] is None and ("." not in name or name.endswith(_LOCAL) or name in allowed):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
