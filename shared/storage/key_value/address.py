"""The address of a Redis server, checked before anything is logged, resolved or connected to.

A password that is not percent-encoded cuts an address in pieces, of which one is looked up in the DNS and others are
logged. Hence no message here quotes any part of an address but its scheme.
"""

from __future__ import annotations

import re
from inspect import signature
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from pydantic import AfterValidator
from redis.asyncio import SSLConnection

FORM = "redis://[USER:PASSWORD@]HOST[:PORT][/DB], the same with rediss:// for TLS, or unix:///PATH[?db=DB]"
ENCODE = "in a user or password write % as %25, / as %2F, # as %23, ? as %3F, @ as %40, [ as %5B and ] as %5D"
OPTIONS = {"db", "username", "password", "client_name", "health_check_interval", "socket_keepalive"}
OPTIONS |= {name for name in signature(SSLConnection).parameters if name.startswith("ssl_")}
"""Options behind `?`; others of the client's would change how values are read and how long is waited."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MODES = re.compile("sentinel|cluster", re.IGNORECASE)


def checked_address(url: str) -> str:
    """Returns an address of Redis that can be used as it is.

    Raises:
        ValueError: it cannot; the text says why and what to do, and quotes nothing that may be part of a password.
    """
    scheme = _checked_scheme(url)
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError(
            f"has a blank or a line break in it; write such a character of a password as %20 or %0A. {FORM}"
        )
    try:
        parts = urlsplit(url)
        named_port = parts.port  # raises for one that is no number
    except ValueError:
        raise ValueError(
            f"cannot be read: the port is no number, or a character is not percent-encoded; {ENCODE}"
        ) from None
    if parts.fragment or "#" in url or "@" in parts.path + parts.query:
        raise ValueError(f"has a character in its user or password that is not percent-encoded; {ENCODE}")
    if named_port == 0 or (scheme != "unix" and not parts.hostname):
        raise ValueError(f"names no host or no port; its form is {FORM}")
    _check_database(parts)
    _check_options(parts)
    return url


RedisUrl = Annotated[str, AfterValidator(checked_address)]
"""A setting that is an address of Redis."""


def place_of(url: str) -> str:
    """Returns a checked address without user and password."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"


def has_user(url: str) -> bool:
    """Whether an address names a user or a password."""
    parts = urlsplit(url)
    return "@" in parts.netloc or not {"username", "password"}.isdisjoint(name for name, _ in parse_qsl(parts.query))


def with_password(url: str, password: str | None) -> str:
    """Returns a checked address with a password, for the user that every server has.

    Raises:
        ValueError: it names a user or a password already.
    """
    if not password:
        return url
    if has_user(url):
        raise ValueError("names a user or a password, and a file with the password is given too")
    scheme, rest = url.split("://", 1)
    return f"{scheme}://:{quote(password, safe='')}@{rest}"


def _checked_scheme(url: str) -> str:
    found = _SCHEME.match(url)
    if found is None:
        raise ValueError(f"has no scheme: its form is {FORM}")
    scheme = found[1]
    if _MODES.search(scheme):
        raise ValueError(
            f"begins with {scheme[:40]}://: neither Sentinel nor cluster mode is supported; its form is {FORM}"
        )
    if scheme not in ("redis", "rediss", "unix"):
        raise ValueError(f"begins with {scheme[:40]}://: its form is {FORM}")
    return scheme


def _check_database(parts: SplitResult) -> None:
    """Checks the number of the database, which the client would overlook if it were none."""
    named = [value for name, value in parse_qsl(parts.query) if name == "db"]
    if parts.scheme != "unix" and parts.path not in ("", "/"):
        named.append(parts.path.removeprefix("/"))
    if len(named) > 1 or any(re.fullmatch("[0-9]{1,6}", text) is None for text in named):
        raise ValueError("names a database that is no number: behind the host comes /0, /1 or the like")


def _check_options(parts: SplitResult) -> None:
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            raise ValueError(f"has an unknown option behind its ?; known: {', '.join(sorted(OPTIONS))}")
