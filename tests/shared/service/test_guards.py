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
from shared.service.settings import CommonSettings, TierSettings
from shared.service.throttle import Throttle

HERE, NEAR = "127.0.0.1", "172.18.0.5"
TRIED = ("", "own", "extra", "guess")


def request(address: str, token: str = "", peer: Peer | None = None) -> Request:
    headers = [(b"host", b"cloud"), (b"authorization", f"Bearer {token}".encode())]
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


async def test_in_development_mode_all_of_the_private_networks_are_let_in() -> None:
    everything = {*CLASSES, "API", "metrics", "joining"}
    assert await opened(CommonSettings(), request(NEAR)) == everything
    assert await opened(CommonSettings(), request("8.8.8.8")) == set()


@pytest.mark.parametrize(
    ("own", "also", "opens"),
    [
        ("own", None, {"own"}),
        ("own", "extra", {"own", "extra"}),
        (None, "extra", {"", "own", "extra", "guess"}),
        (None, None, {"", "own", "extra", "guess"}),
    ],
    ids=["a token", "a token and one for metrics", "one for metrics only", "no token"],
)
async def test_metrics_accept_their_token_and_the_tiers_own(own: str | None, also: str | None, opens: set[str]) -> None:
    for field, metrics_like in (("tier_token", "tier"), ("api_token", "API")):
        given: dict[str, Any] = {field: own, "metrics_token": also}
        common = CommonSettings(**given)
        tried = {token: await opened(common, request(NEAR, token), metrics_like) for token in TRIED}
        assert {token for token, doors in tried.items() if "metrics" in doors} == opens


@pytest.mark.parametrize("metrics_like", ["tier", "API"])
async def test_the_metrics_token_opens_nothing_else(metrics_like: str) -> None:
    common = CommonSettings(tier_token="the-tiers", api_token="the-users", metrics_token="for-metrics")  # noqa: S106
    assert await opened(common, request(NEAR, "for-metrics"), metrics_like) - {"joining"} == {"metrics"}


@pytest.mark.parametrize(("address", "users"), [(HERE, {"API", "metrics"}), (NEAR, set[str]())])
async def test_in_secure_mode_without_a_users_token_only_this_machine_is_a_user(address: str, users: set[str]) -> None:
    """A node is in the private networks too; its certificate opens the routes of its class alone."""
    secure = CommonSettings(secure=True)
    assert await opened(secure, request(address)) == users | {"joining"}
    peer = Peer(identity=agent_identity("a"), serial="1", not_after=4e9)
    assert await opened(secure, request(address, peer=peer)) == users | {"joining", "device"}


async def test_in_secure_mode_the_users_token_opens_the_api_from_everywhere_and_no_tier() -> None:
    secure = CommonSettings(secure=True, api_token="the-users")  # noqa: S106
    assert await opened(secure, request("8.8.8.8", "the-users")) == {"API", "metrics", "joining"}
    assert await opened(secure, request(HERE)) == {"joining"}
    both = CommonSettings(secure=True, tier_token="the-tiers", api_token="the-users")  # noqa: S106
    assert await opened(both, request(HERE, "the-tiers")) == {"joining"}, "a given tier token opens nothing"


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
    check = peer_guard(node_class, clock=lambda: NOW)
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
    check = peer_guard("edge", revoked, lambda: NOW)
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
