"""Who calls, where nodes show certificates: a peer is known by class and name, not by its address or a shared token."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence

from fastapi import Request

from shared.core.errors import Forbidden, Unauthorised
from shared.identity.names import NodeClass, Peer
from shared.service.auth import Guard

PEER = "peer"
"""Key of the state of an ASGI scope: the `Peer` on the other side of the connection, None without a certificate."""


def peer_guard(
    node_classes: Sequence[NodeClass], revoked: Container[str] = (), clock: Callable[[], float] = time.time
) -> Guard:
    """Returns the guard of routes that only nodes of these classes may call.

    Args:
        node_classes: of the callers.
        revoked: serial numbers of certificates that are refused; it may change.
        clock: seconds since the epoch: a connection may outlast the certificate that opened it.

    The guard raises `Unauthorised` without a certificate that holds, `Forbidden` for other classes.
    """

    allowed = " or ".join(node_classes)

    async def check(request: Request) -> None:
        peer = peer_in(request)
        if peer is None:
            raise Unauthorised(f"only a node of the class {allowed} may call this: it needs a certificate")
        if peer.identity.node_class not in node_classes:
            raise Forbidden(f"only a node of the class {allowed} may call this, not {peer.identity}")
        if peer.serial in revoked:
            raise Forbidden(f"the certificate of {peer.identity} has been revoked")
        if clock() > peer.not_after:
            raise Unauthorised(f"the certificate of {peer.identity} has ended")

    return check


def peer_in(request: Request) -> Peer | None:
    """Returns the peer of a request's connection; None where it shows no certificate."""
    found: Peer | None = request.scope.get("state", {}).get(PEER)
    return found


def check_speaker(request: Request, node_class: NodeClass, name: str) -> None:
    """Refuses a node that speaks for another one; without certificates all are believed.

    Raises:
        Forbidden: names both.
    """
    peer = peer_in(request)
    if peer is not None and (peer.identity.node_class, peer.identity.name) != (node_class, name):
        raise Forbidden(f"{peer.identity} may not speak for the {node_class} {name[:64]!r}")
