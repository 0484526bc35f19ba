"""Addresses and names of hosts: which are this machine, in a network, or well-formed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK: list[Network] = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", "::1/128")]
PRIVATE: list[Network] = LOOPBACK + [
    ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
]
"""Where those who show neither a token nor a certificate are believed, unless a setting says otherwise."""
_NO_NODES: list[Network] = [
    ipaddress.ip_network(text)
    for text in ("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/128", "fe80::/10", "ff00::/8")
]
"""Where a machine alone or a cloud's metadata service answers (RFC 3927, RFC 4291), several machines, or none."""


def _without(network: Network, parts: Sequence[Network]) -> list[Network]:
    """Returns a network without some of its parts, as networks."""
    left: list[Network] = [network]
    for part in parts:
        if part.version == network.version:
            kept = [[*whole.address_exclude(part)] if part.subnet_of(whole) else [whole] for whole in left]  # type: ignore[arg-type]
            left = [each for found in kept for each in found]
    return left


ANYWHERE: list[Network] = [
    each for text in ("0.0.0.0/0", "::/0") for each in _without(ipaddress.ip_network(text), _NO_NODES)
]
"""All addresses that a node may have: those that other machines reach as its own, and loopback."""
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


def in_url(host: str) -> str:
    """Returns a host as a URL has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def check_url(url: str, *schemes: str) -> str:
    """Returns an address of a server, if it is one.

    Raises:
        ValueError: its scheme is none of these, or it has no host, or a port that is none.
    """
    parts, form = urlsplit(url), f"{schemes[0]}://HOST:PORT"
    try:
        whole = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise ValueError(f"write it as {form}, an IPv6 address in brackets, as in {schemes[0]}://[::1]:8000")
    return url


def inside(host: str | None, networks: Sequence[Network]) -> bool:
    """Whether an address lies in one of the networks; an IPv4 address written as IPv6 counts as IPv4."""
    try:
        parsed = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in networks if network.version == parsed.version)


def address(text: str) -> str:
    """Returns an IP address.

    Raises:
        ValueError: it is none.
    """
    return str(ipaddress.ip_address(text))


def outside(host: str | None, networks: Sequence[Network], remedy: str) -> str:
    """Returns in words that an address is in none of the networks, and what to do about it."""
    if networks == ANYWHERE:
        return f"{host} is link-local, multicast or no address of one machine: {remedy}"
    return f"{host} is in none of the networks {', '.join(map(str, networks))}: {remedy}"


def host_name(text: object) -> str:
    """Returns a host name of a setting in lower case.

    Raises:
        ValueError: it is not a name alone, as `cloud.example` is.
    """
    name = str(text).removesuffix(".").lower()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{str(text)[:100]!r} is not a host name; write it without scheme, port and wildcard")
    return name
