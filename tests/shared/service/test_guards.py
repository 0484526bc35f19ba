"""Which guard lets in whom, with and without secure mode."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from fastapi import Request

from shared.core.errors import Forbidden, Unauthorised
from shared.identity.names import CLASSES, CLOUD, Identity, Peer, agent_identity, edge_identity
from shared.service.app import guards_of
from shared.service.peers import check_speaker, peer_guard
from shared.service.protocol import SAID
from shared.service.settings import CommonSettings, TierSettings
from shared.service.throttle import Throttle

HERE, NEAR = "127.0.0.1", "172.18.0.5"
TRIED = ("", "own", "extra", "guess")


def request(address: str, token: str = "", peer: Peer | None = None) -> Request:
    headers = [(b"host", b"cloud"), (b"authorization", f"Bearer {token}".encode())]
    headers += [(name.encode(), said.encode()) for name, said in SAID.items()]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": (address, 1)}
    return Request(scope | {"state": {"peer": peer}})


async def opened(common: CommonSettings, asked: Request, metrics_like: str = "API") -> set[str]:
    """Returns the names of the guards that let a request in."""
    found = set()
    for name, check in guards_of(TierSettings(common=common), Throttle(), metrics_like).items():
        with suppress(Unauthorised, Forbidden):
            await check(asked)
            found.add(name)
    return found


USERS = {"API", "metrics", "joining"}
SECURE, WITH_USERS = {"secure": True}, {"secure": True, "api_token": "the-users"}


@pytest.mark.parametrize(
    ("given", "address", "token", "opens"),
    [
        ({}, NEAR, "", {*CLASSES, "node", *USERS}),
        ({}, "8.8.8.8", "", set()),
        (SECURE, HERE, "", USERS),
        (SECURE, NEAR, "", {"joining"}),  # where other nodes are, too
        (WITH_USERS, "8.8.8.8", "the-users", USERS),
        (WITH_USERS, HERE, "", {"joining"}),
        ({**WITH_USERS, "tier_token": "the-tiers"}, HERE, "the-tiers", {"joining"}),
    ],
)
async def test_each_mode_opens_its_doors(given: dict[str, Any], address: str, token: str, opens: set[str]) -> None:
    """A certificate opens the routes of its class alone."""
    common = CommonSettings(**given)
    assert await opened(common, request(address, token)) == opens
    if common.secure:
        peer = Peer(identity=agent_identity("a"), serial="1", not_after=4e9)
        assert await opened(common, request(address, token, peer)) == opens | {"device", "node"}


@pytest.mark.parametrize(
    ("own", "also", "opens"),
    [("own", None, {"own"}), ("own", "extra", {"own", "extra"}), (None, "extra", {*TRIED}), (None, None, {*TRIED})],
)
async def test_metrics_accept_their_token_and_the_tiers_own(own: str | None, also: str | None, opens: set[str]) -> None:
    for field, metrics_like in (("tier_token", "tier"), ("api_token", "API")):
        given: dict[str, Any] = {field: own, "metrics_token": also}
        common = CommonSettings(**given)
        tried = {token: await opened(common, request(NEAR, token), metrics_like) for token in TRIED}
        assert {token for token, doors in tried.items() if "metrics" in doors} == opens
        every = CommonSettings(tier_token="the-tiers", api_token="the-users", metrics_token="own")  # noqa: S106
        doors = await opened(every, request(NEAR, "own"), metrics_like)
        assert doors - {"joining"} == {"metrics"}, "the metrics token opens nothing else"


# ---- guards by certificate, and a node that speaks for another one

NOW = 1000.0


def shown_by(identity: Identity | None, serial: str = "a1", not_after: float = NOW + 1) -> Request:
    scope: dict[str, Any] = {"type": "http", "state": {}}
    if identity is not None:
        scope["state"]["peer"] = Peer(identity=identity, serial=serial, not_after=not_after)
    return Request(scope)


NODES = [CLOUD, edge_identity("x"), agent_identity("x"), Identity(node_class="fleet", name="x")]


@pytest.mark.parametrize("node_class", CLASSES)
async def test_a_route_answers_one_class_only(node_class: Any) -> None:
    check = peer_guard((node_class,), clock=lambda: NOW)
    for node in NODES:
        if node.node_class == node_class:
            await check(shown_by(node))
        else:
            with pytest.raises(Forbidden, match=f"only a node of the class {node_class} may call this, not {node}"):
                await check(shown_by(node))
    with pytest.raises(Unauthorised, match="it needs a certificate"):
        await check(shown_by(None))


async def test_a_certificate_that_ends_or_is_revoked_while_its_connection_is_open_is_refused() -> None:
    revoked: set[str] = set()
    check = peer_guard(("edge",), revoked, lambda: NOW)
    await check(shown_by(edge_identity("x"), not_after=NOW))
    with pytest.raises(Unauthorised, match="the certificate of edge x has ended"):
        await check(shown_by(edge_identity("x"), not_after=NOW - 1))
    revoked.add("a1")
    with pytest.raises(Forbidden, match="the certificate of edge x has been revoked"):
        await check(shown_by(edge_identity("x")))
    await check(shown_by(edge_identity("x"), serial="a2"))


def test_a_node_speaks_for_itself_alone() -> None:
    check_speaker(shown_by(edge_identity("x")), "edge", "x")
    check_speaker(shown_by(None), "edge", "anybody")
    for identity, node_class, name in (
        (edge_identity("x"), "edge", "y"),
        (edge_identity("x"), "device", "x"),
        (agent_identity("x"), "edge", "x"),
        (edge_identity("x"), "edge", ""),
    ):
        with pytest.raises(Forbidden, match="may not speak for"):
            check_speaker(shown_by(identity), node_class, name)  # type: ignore[arg-type]
