"""By which names a tier without tokens may be asked.

A page in a browser is kept from other sites by their names. A stranger may have a name of his own lead to this machine
(DNS rebinding): his page then asks a tier here as if it were its own site, from an address that is trusted. What he
cannot do is to have the browser send another `Host` than his name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from shared.core.errors import Forbidden

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
