"""The users of Redis as the cloud makes them: its own at its start, that of an edge with its certificate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cloud_server.nodes.store_users import StoreUsers
from shared.identity.names import agent_identity, edge_identity
from shared.storage import redis_keys
from shared.storage.key_value import RedisStore, StoreUnavailable, StoreUser
from shared.storage.states import Version
from strata.launcher.redis_server import RedisServer, start_redis

EDGE = edge_identity("edge-1")
KEY = redis_keys.edge_state("edge-1", "r", 0, Version(1))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis", fsync="no", users=True) as server:
        yield server


@pytest.fixture
async def users(server: RedisServer, tmp_path: Path) -> AsyncIterator[StoreUsers]:
    users = StoreUsers(server.url, tmp_path)
    await users.look()
    yield users
    await users.store.close()


async def get(server: RedisServer, password: str, key: str) -> bytes | None:
    store = RedisStore(server.url, user=lambda: StoreUser(redis_keys.user_of_edge("edge-1"), password))
    try:
        return await store.get(key)
    finally:
        await store.close()


async def test_an_edge_reaches_its_keys_with_the_password_that_it_got(server: RedisServer, users: StoreUsers) -> None:
    await users.store.put(redis_keys.CLOUD_OWNER, b"1")
    password = await users.let_in(EDGE, "key")
    assert await get(server, password, KEY) is None
    with pytest.raises(StoreUnavailable, match="refuses"):
        await get(server, password, redis_keys.CLOUD_OWNER)
    with pytest.raises(StoreUnavailable, match="password"):
        await get(server, "wrong", KEY)


async def test_a_password_is_the_same_when_asked_again_and_another_for_another_key(
    server: RedisServer, users: StoreUsers, tmp_path: Path
) -> None:
    first = await users.let_in(EDGE, "key")
    assert await StoreUsers(server.url, tmp_path).let_in(EDGE, "key") == first, "nothing but the cloud's secret decides"
    await users.shut_out(EDGE)
    with pytest.raises(StoreUnavailable):
        await get(server, first, KEY)
    second = await users.let_in(EDGE, "another key")
    assert await get(server, second, KEY) is None
    with pytest.raises(StoreUnavailable):
        await get(server, first, KEY)


async def test_only_edges_are_users(users: StoreUsers, tmp_path: Path) -> None:
    before = (tmp_path / "redis" / "users.acl").read_text()
    assert await users.let_in(agent_identity("a-1"), "key") == ""
    await users.shut_out(agent_identity("a-1"))
    assert (tmp_path / "redis" / "users.acl").read_text() == before
    assert "user cloud on" in before


async def test_a_redis_that_was_replaced_by_an_empty_one_is_taken_over_again(
    server: RedisServer, users: StoreUsers, tmp_path: Path
) -> None:
    await users.store.put("cloud:a", b"1")
    server.stop()
    (tmp_path / "redis" / "users.acl").unlink()
    with start_redis(tmp_path / "redis", fsync="no", users=True) as server:
        for _ in range(2):  # the first learns that its connection is closed
            with pytest.raises(StoreUnavailable):
                await users.store.get("cloud:a")
        await users.look()
        assert await users.store.get("cloud:a") == b"1"
        async with Redis.from_url(server.url, protocol=2) as nobody:
            with pytest.raises(Exception, match="permissions"):
                await nobody.get("cloud:a")


def test_the_secret_is_drawn_once_for_the_owner_alone(tmp_path: Path) -> None:
    StoreUsers("redis://127.0.0.1:1", tmp_path)
    file = tmp_path / "identity" / "store-secret"
    drawn = file.read_text()
    assert len(drawn) == 64
    assert file.stat().st_mode & 0o777 == 0o600
    StoreUsers("redis://127.0.0.1:1", tmp_path)
    assert file.read_text() == drawn
