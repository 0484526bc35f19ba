"""Which guard lets in whom, with and without secure mode."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from fastapi import Request

from shared.core.errors import Forbidden, Unauthorised
from shared.identity.names import CLASSES, Peer, agent_identity
from shared.service.app import guards_of
from shared.service.settings import CommonSettings, TierSettings
from shared.service.throttle import Throttle

HERE, NEAR = "127.0.0.1", "172.18.0.5"


def request(address: str, token: str = "", peer: Peer | None = None) -> Request:
    headers = [(b"host", b"cloud"), (b"authorization", f"Bearer {token}".encode())]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": (address, 1)}
    return Request(scope | {"state": {"peer": peer}})


async def opened(common: CommonSettings, asked: Request) -> set[str]:
    """Returns the names of the guards that let a request in."""
    found = set()
    for name, check in guards_of(TierSettings(common=common), Throttle(), "API").items():
        with suppress(Unauthorised, Forbidden):
            await check(asked)
            found.add(name)
    return found


async def test_in_development_mode_all_of_the_private_networks_are_let_in() -> None:
    everything = {*CLASSES, "API", "metrics", "joining"}
    assert await opened(CommonSettings(), request(NEAR)) == everything
    assert await opened(CommonSettings(), request("8.8.8.8")) == set()


@pytest.mark.parametrize(("address", "users"), [(HERE, {"API", "metrics"}), (NEAR, set[str]())])
async def test_in_secure_mode_without_a_users_token_only_this_machine_may_do_what_users_may(
    address: str, users: set[str]
) -> None:
    """A node is in the private networks too; its certificate opens the routes of its class alone."""
    secure = CommonSettings(secure=True)
    assert await opened(secure, request(address)) == users | {"joining"}
    peer = Peer(identity=agent_identity("a"), serial="1", not_after=4e9)
    assert await opened(secure, request(address, peer=peer)) == users | {"joining", "device"}


async def test_in_secure_mode_the_users_token_opens_the_api_from_everywhere_and_no_tier() -> None:
    secure = CommonSettings(secure=True, api_token="the-users")  # noqa: S106
    assert await opened(secure, request("8.8.8.8", "the-users")) == {"API", "metrics", "joining"}
    assert await opened(secure, request(HERE)) == {"joining"}


async def test_a_given_tier_token_opens_nothing_in_secure_mode() -> None:
    secure = CommonSettings(secure=True, tier_token="the-tiers", api_token="the-users")  # noqa: S106
    assert await opened(secure, request(HERE, "the-tiers")) == {"joining"}
