"""The proxy that the environment names for an address: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, but NO_PROXY.

They are read here since httpx2 refuses what other programs take: a proxy without scheme, IPv6 addresses and networks in
NO_PROXY, and `socks://`, which desktops set.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.request
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

from shared.core.addresses import inside, is_loopback
from shared.core.errors import BadInput

_SOCKS = {"socks": "socks5", "socks5": "socks5", "socks5h": "socks5h"}


@dataclass(frozen=True)
class Proxy:
    """A proxy: its address, and the variable that names it."""

    url: str
    variable: str


def proxy_of(url: str) -> Proxy | None:
    """Returns the proxy for an address, None to connect directly; always so to this machine itself.

    Raises:
        BadInput: the variable names no proxy that can be used.
    """
    parts, named = urlsplit(url), urllib.request.getproxies()
    host = parts.hostname or ""
    kind = next((kind for kind in (parts.scheme, "all") if named.get(kind)), None)
    if kind is None or is_loopback(host) or _is_left_out(host, named.get("no", "")):
        return None
    variable = _variable(kind)
    return Proxy(_usable(named[kind], variable), variable)


def _is_left_out(host: str, no_proxy: str) -> bool:
    """Whether NO_PROXY has a host: by its name or one that it ends in, its address, or a network (`fd00::/8`)."""
    if urllib.request.proxy_bypass(host):
        return True
    return inside(host, [network for network in map(_network, no_proxy.split(",")) if network is not None])


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    address, _, length = text.strip().partition("/")
    address = address.strip("[]")
    try:
        return ipaddress.ip_network(f"{address}/{length}" if length else address, strict=False)
    except ValueError:
        return None


def _variable(kind: str) -> str:
    name = f"{kind}_proxy"
    return next((each for each in (name, name.upper()) if os.environ.get(each)), name.upper())


def _usable(text: str, variable: str) -> str:
    """The address of a proxy as httpx2 takes it."""
    url = text if "://" in text else f"http://{text}"
    scheme, _, rest = url.partition("://")
    try:
        whole = bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:
        whole = False
    if not whole or scheme.lower() not in {"http", "https", *_SOCKS}:
        raise _refused(variable, "is no address of a proxy such as http://proxy:3128; correct")
    if scheme.lower() in _SOCKS:
        if find_spec("socksio") is None:
            raise _refused(variable, "names a SOCKS proxy, which needs the package socksio; install it, or unset")
        return f"{_SOCKS[scheme.lower()]}://{rest}"
    return url


def _refused(variable: str, what: str) -> BadInput:
    return BadInput(f"{variable} {what} {variable}, or add the host to NO_PROXY", field=variable)
