"""By which names a tier without tokens may be asked.

A page in a browser is kept from other sites by their names. A stranger may have a name of his own lead to this machine
(DNS rebinding): his page then asks a tier here as if it were its own site, from an address that is trusted. What he
cannot do is to have the browser send another `Host` than his name.

Tokens that stand in files: what secrets of Docker, and of others, put beside a process.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fastapi import Request

from shared.core.errors import Forbidden, Unauthorised

_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.~-]+)?)\]|(?P<name>[^\s:/?#@\\\[\]]*))(?::\d*)?")
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_OURS = (".localhost", ".local", ".internal", ".home.arpa")
"""Ends of names that are nobody's on the internet (RFC 6761, 6762 and 8375, and ICANN's `internal`)."""
_QUOTED = 100


def host_name(text: object) -> str:
    """A name as it stands in a setting, in small letters.

    Raises:
        ValueError: it is no name alone, as `cloud.example` is.
    """
    name = str(text).removesuffix(".").lower()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{str(text)[:_QUOTED]!r} is no name of a host; one without a scheme and a port stands here")
    return name


def is_near(host: str, allowed: Sequence[str] = ()) -> bool:
    """Whether a request's Host is an address, a name that no stranger can have lead here, or one of the allowed.

    Names without a dot are services of a network of containers, or machines of this house. Without a Host no browser
    asks.

    Args:
        host: the header, with or without a port.
        allowed: further names, as `host_name` gives them.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found["six"] or found["name"]).removesuffix(".").lower()
    if found["six"] is None and ("." not in name or name.endswith(_OURS) or name in allowed):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refuse_foreign(host: str, allowed: Sequence[str] = ()) -> None:
    """Let nobody in who asks by a name that a stranger may have lead here.

    Raises:
        Forbidden: naming the field `Host`.
    """
    if not is_near(host, allowed):
        raise Forbidden(
            f"in development mode nobody may ask by the name {host[:_QUOTED]!r}, which may be another site's: ask by "
            "an address or a name without dots, put it into ALLOWED_HOSTS (as CLOUD_ALLOWED_HOSTS), or set tokens",
            field="Host",
        )


MOST_BYTES = 4096


def token_of(name: str, token: str | None, file: str | Path | None) -> str | None:
    """The token that the variable `name` holds, else what the file holds that `name`_FILE names; None without both.

    Raises:
        ValueError: both are set; or the file cannot be read, is empty (which must not pass for no token at all), or
            holds what no header can carry: no single word of printable ASCII, or more than 4 KiB.
    """
    if not file:
        return token or None
    if token:
        raise ValueError(f"{name} and {name}_FILE are both set")
    try:
        with Path(file).open("rb") as opened:
            found = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{name}_FILE: {file} cannot be read: {error.strerror}") from None
    held = found.decode("latin-1").strip()
    if not held:
        raise ValueError(f"{name}_FILE: {file} is empty")
    if len(found) > MOST_BYTES or not all("!" <= letter <= "~" for letter in held):
        raise ValueError(f"{name}_FILE: {file} holds no token: one word of printable ASCII, {MOST_BYTES} bytes at most")
    return held


def inside(address: str | None, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    """Whether an address lies in one of the networks."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in networks if network.version == parsed.version)


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


# ---- who may ask


def bearer(request: Request) -> str:
    """The bearer token of a request, empty if it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def guard(
    token: str | None, networks: list[Network], what: str, also: str | None = None, hosts: Sequence[str] = ()
) -> Callable[[Request], None]:
    """A dependency that lets through who has the token; without a token set, who is in the allowed networks.

    Args:
        token: what opens this door; None or empty: development mode.
        networks: who may ask then.
        what: the token's name in a refusal.
        also: a second token that opens this door, where one is set; it closes none.
        hosts: names by which one may ask in development mode, beside those that no stranger can have lead here.
    """

    def check(request: Request) -> None:
        shown = bearer(request).encode()
        if also and hmac.compare_digest(shown, also.encode()):
            return
        if not token:
            host = request.client.host if request.client else None
            if not inside(host, networks):
                raise Forbidden(f"in development mode only the allowed networks may ask, not {host}")
            if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):  # a page in a browser here
                raise Forbidden("in development mode pages of other sites may not ask")
            refuse_foreign(request.headers.get("host", ""), hosts)
        elif not hmac.compare_digest(shown, token.encode()):
            raise Unauthorised(f"the {what} token is missing or wrong")

    return check
