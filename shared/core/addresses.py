"""What the address of a service says about the way to it."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine itself. No proxy lies between the two, whatever the environment says."""
    name = host.strip("[]").removesuffix(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
