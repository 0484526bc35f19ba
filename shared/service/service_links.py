"""Service links: variables that Kubernetes, and Docker for linked containers, set for other services. No settings.

In a namespace with a Service `cloud`, each container gets `CLOUD_PORT=tcp://10.0.0.1:8000`, `CLOUD_SERVICE_HOST`,
`CLOUD_PORT_8000_TCP_ADDR` and so on (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

REMEDY = "`enableServiceLinks: false` in the pod's spec leaves them out"
_VALUE = re.compile(r"(tcp|udp|sctp)://\S*", re.IGNORECASE)
_DETAIL = re.compile(r".+_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.IGNORECASE)


def is_service_link(name: str, value: str | None) -> bool:
    """Whether a variable is a service link."""
    if _DETAIL.fullmatch(name):
        return True
    return name.upper().endswith("_PORT") and _VALUE.fullmatch(value or "") is not None


def service_links(environ: Mapping[str, str], prefix: str) -> list[str]:
    """Returns the names of the service links whose names begin with a prefix, sorted."""
    return sorted(
        name for name, value in environ.items() if name.upper().startswith(prefix) and is_service_link(name, value)
    )


def named(links: list[str]) -> str:
    """Returns service links in words: first those that would be taken for a port of ours, then how many more."""
    shown = [name for name in links if name.upper().endswith("_PORT") and not _DETAIL.fullmatch(name)] or links[:1]
    more = len(links) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
