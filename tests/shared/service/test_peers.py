"""Guards by certificate, and a node that speaks for another one."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Request

from shared.core.errors import Forbidden, Unauthorised
from shared.identity.names import CLASSES, CLOUD, Identity, Peer, agent_identity, edge_identity
from shared.service.peers import check_speaker, peer_guard

NOW = 1000.0


def request(identity: Identity | None, serial: str = "a1", not_after: float = NOW + 1) -> Request:
    scope: dict[str, Any] = {"type": "http", "state": {}}
    if identity is not None:
        scope["state"]["peer"] = Peer(identity=identity, serial=serial, not_after=not_after)
    return Request(scope)


NODES = [CLOUD, edge_identity("x"), agent_identity("x"), Identity(node_class="fleet", name="x")]


@pytest.mark.parametrize("node_class", CLASSES)
async def test_a_route_answers_one_class_only(node_class: Any) -> None:
    check = peer_guard(node_class, clock=lambda: NOW)
    for node in NODES:
        if node.node_class == node_class:
            await check(request(node))
        else:
            with pytest.raises(Forbidden, match=f"only a node of the class {node_class} may call this, not {node}"):
                await check(request(node))
    with pytest.raises(Unauthorised, match="it needs a certificate"):
        await check(request(None))


async def test_a_certificate_that_ends_or_is_revoked_while_its_connection_is_open_is_refused() -> None:
    revoked: set[str] = set()
    check = peer_guard("edge", revoked, lambda: NOW)
    await check(request(edge_identity("x"), not_after=NOW))
    with pytest.raises(Unauthorised, match="the certificate of edge x has ended"):
        await check(request(edge_identity("x"), not_after=NOW - 1))
    revoked.add("a1")
    with pytest.raises(Forbidden, match="the certificate of edge x has been revoked"):
        await check(request(edge_identity("x")))
    await check(request(edge_identity("x"), serial="a2"))


def test_a_node_speaks_for_itself_alone() -> None:
    check_speaker(request(edge_identity("x")), "edge", "x")
    check_speaker(request(None), "edge", "anybody")
    for identity, node_class, name in (
        (edge_identity("x"), "edge", "y"),
        (edge_identity("x"), "device", "x"),
        (agent_identity("x"), "edge", "x"),
        (edge_identity("x"), "edge", ""),
    ):
        with pytest.raises(Forbidden, match="may not speak for"):
            check_speaker(request(identity), node_class, name)  # type: ignore[arg-type]
