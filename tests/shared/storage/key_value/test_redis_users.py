"""What the users of a Redis server reach: their own keys, and by the commands of a store alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError

from shared.storage.key_value import Batch, RedisStore, RedisUsers, StoreUnavailable, StoreUser
from strata.launcher.redis_server import RedisServer, start_redis
from tests.real_redis import restart

ME, OTHER = StoreUser("cloud", "c" * 64), StoreUser("edge:e", "e" * 64)
Stores = tuple[RedisStore, RedisStore, RedisStore]
OTHER_COMMANDS = ("FLUSHALL", "CONFIG GET dir", "KEYS *", "REPLICAOF NO ONE", "EVAL 1 0", "ACL LIST", "CLIENT LIST")


@pytest.fixture
def server(tmp_path: Path, each_product: None) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis", fsync="no", users=True) as server:
        yield server


@pytest.fixture
async def users(server: RedisServer) -> RedisUsers:
    users = RedisUsers(server.url, ME, "cloud:")
    await users.take_over()
    return users


@pytest.fixture
def stores(server: RedisServer, open_store: Callable[..., RedisStore]) -> Stores:
    """Stores of the cloud, of an edge, and of somebody without a password."""
    cloud, edge, nobody = (open_store(server.url, user=lambda user=user: user) for user in (ME, OTHER, None))
    return cloud, edge, nobody


async def test_each_user_reaches_its_own_keys_alone(users: RedisUsers, stores: Stores) -> None:
    cloud, edge, nobody = stores
    await users.put(OTHER, "edge:e:")
    for own, store in (("cloud:a", cloud), ("edge:e:a", edge)):
        await store.put(own, b"1", ttl_s=60)
        assert await store.commit(Batch().expect(own, b"1").put(own, b"2").append(own + "-stream", b"x"))
        assert [entry.data for entry in await store.read(own + "-stream", block_s=0.01)] == [b"x"]
        assert await store.last_id(own + "-stream") != "0"
        assert await store.scan(own) == {own: b"2"}
        assert await store.delete_prefix(own) == 2
    # The names of an edge are one another's beginnings: `e` must not reach what `e2` keeps.
    foreign_to = (("edge:e:a", cloud), ("cloud:a", edge), ("edge:e2:a", edge), ("edge:e", edge), ("a", nobody))
    for foreign, store in foreign_to:
        for call in (store.get(foreign), store.put(foreign, b"1"), store.commit(Batch().append(foreign, b"1"))):
            with pytest.raises(StoreUnavailable, match="refuses"):
                await call


async def test_no_user_has_other_commands_than_its_store_needs(server: RedisServer, users: RedisUsers) -> None:
    await users.put(OTHER, "edge:e:")
    refused: dict[str, list[str]] = {}
    for name, password in (ME, OTHER, ("default", "")):
        async with Redis.from_url(server.url, username=name, password=password, protocol=2) as redis:
            for words in OTHER_COMMANDS:
                try:
                    await redis.execute_command(*words.split())
                except NoPermissionError:
                    refused.setdefault(name, []).append(words.split()[0])
            assert await redis.ping()
    assert all(len(words) == len(OTHER_COMMANDS) for words in refused.values())
    assert set(refused) == {ME.name, OTHER.name, "default"}
    async with Redis.from_url(server.url, username=OTHER.name, password=OTHER.password, protocol=2) as redis:
        with pytest.raises(NoPermissionError):  # it cannot make itself another
            await redis.acl_setuser(OTHER.name, enabled=True, keys=["*"])


async def test_a_removed_user_is_cut_off_at_once(users: RedisUsers, stores: Stores) -> None:
    edge = stores[1]
    await users.put(OTHER, "edge:e:")
    await edge.put("edge:e:a", b"1")
    await users.remove(OTHER.name)
    with pytest.raises(StoreUnavailable):
        await edge.get("edge:e:a")
    assert edge.refuses_user
    await users.put(OTHER, "edge:e:")
    assert await edge.get("edge:e:a") == b"1"
    assert not edge.refuses_user


async def test_users_outlast_installations_and_restarts(server: RedisServer, users: RedisUsers, stores: Stores) -> None:
    await users.put(OTHER, "edge:e:")
    await stores[1].put("edge:e:a", b"1")
    with pytest.raises(StoreUnavailable, match="another installation"):
        await RedisUsers(server.url, StoreUser("cloud", "d" * 64), "cloud:").take_over()
    await stores[0].put("cloud:a", b"1")
    restart(server)
    async with Redis.from_url(server.url, protocol=2) as nobody:
        with pytest.raises(NoPermissionError):
            await nobody.get("edge:e:a")
    await users.take_over()  # again, as a cloud that starts does
    assert await stores[1].get("edge:e:a") == b"1"


async def test_a_server_without_a_file_for_its_users_is_not_left_half_closed(redis_server: RedisServer) -> None:
    with pytest.raises(StoreUnavailable, match="ACL file"):
        await RedisUsers(redis_server.url, ME, "cloud:").take_over()
    async with Redis.from_url(redis_server.url, protocol=2) as redis:
        with pytest.raises(AuthenticationError):
            await redis.auth(ME.password, ME.name)
        assert await redis.keys("nothing") == []
