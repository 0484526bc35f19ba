"""Addresses and names of hosts: which are this machine, in a network, or well-formed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine itself. No proxy lies between the two, whatever the environment says."""
    name = host.strip("[]").removesuffix(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def inside(address: str | None, networks: Sequence[Network]) -> bool:
    """Whether an address lies in one of the networks; an IPv4 address written as IPv6 counts as IPv4."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in networks if network.version == parsed.version)


def host_name(text: object) -> str:
    """Returns a host name of a setting in lower case.

    Raises:
        ValueError: it is not a name alone, as `cloud.example` is.
    """
    name = str(text).removesuffix(".").lower()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{str(text)[:100]!r} is not a host name; write it without scheme, port and wildcard")
    return name
