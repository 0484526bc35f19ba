"""What a Redis of another kind refuses is one sentence that says what is wrong, without the password."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from shared.storage.key_value import Batch, RedisStore, StoreUnavailable
from strata.launcher.redis_binary import find_redis_server
from strata.launcher.redis_server import RedisServer, start_redis

Opener = Callable[..., RedisStore]
Refusal = Callable[[str], Awaitable[str]]
pytestmark = pytest.mark.usefixtures("each_product")


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis", fsync="no") as server:
        yield server


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of a server that holds all slots of a cluster."""
    folder.mkdir()
    path = folder / "redis.sock"
    options = {"port": "0", "unixsocket": str(path), "dir": str(folder), "save": "", "cluster-enabled": "yes"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    with RedisServer(folder, path, [str(find_redis_server().path), *arguments], 60.0) as server:
        with redis.Redis.from_url(server.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        yield server.url


@pytest.fixture
def refusal(open_store: Opener) -> Refusal:
    """Says what a store says of a server that it cannot use."""

    async def said(url: str) -> str:
        with pytest.raises(StoreUnavailable) as refused:
            await open_store(url).commit(Batch().expect("a", None).put("b", b"1").append("c", b"1"))
        return refused.value.detail

    return said


async def test_cluster_mode_is_named(tmp_path: Path, refusal: Refusal, open_store: Opener) -> None:
    with cluster(tmp_path / "redis") as url:
        for address in (url, url.replace("db=0", "db=1")):
            assert "is in cluster mode, which is not supported" in await refusal(address)
        assert "cluster mode" in str((await open_store(url).server()).refusal())


async def test_passwords_and_numbers_of_databases_are_named_without_the_password(
    plain: RedisServer, refusal: Refusal, open_store: Opener
) -> None:
    assert "has no database of the number" in await refusal(plain.url.replace("db=0", "db=99"))
    assert "refuses the user or password" in await refusal(f"{plain.url}&password=s3cret")
    with redis.Redis.from_url(plain.url) as client:
        client.config_set("requirepass", "p@ss/w:rd#1")
    for url in (plain.url, f"{plain.url}&password=s3cret"):
        said = await refusal(url)
        assert "refuses the user or password of its address" in said
        assert "s3cret" not in said
    await open_store(f"{plain.url}&password=p%40ss%2Fw%3Ard%231").put("a", b"1")


async def test_what_is_no_redis_or_speaks_another_protocol_is_hinted_at(refusal: Refusal) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert "one that speaks TLS needs rediss://" in await refusal(f"redis://{place}/0")
        assert "the server must speak TLS" in await refusal(f"rediss://{place}/0")


async def test_a_server_that_removes_keys_says_so_itself(plain: RedisServer, open_store: Opener) -> None:
    store = open_store(plain.url)
    first = await store.server()
    assert (first.refusal(), first.warnings(), first.policy) == (None, (), "noeviction")
    with redis.Redis.from_url(plain.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert (await store.server()).refusal() is None
        assert "once its memory is limited" in (await store.server()).warnings()[0]
        client.config_set("maxmemory", "3mb")
        assert "maxmemory-policy allkeys-lru" in str((await store.server()).refusal())
        for n in range(60):
            client.set(f"k{n}", b"x" * 100_000)
        assert (await store.server()).n_evicted > 0
        client.config_set("maxmemory-policy", "volatile-lru")
        assert "may remove leases" in (await store.server()).warnings()[0]
        client.config_set("appendonly", "no")
        assert "has no append-only file" in (await store.server()).warnings()[1]
        client.execute_command("ACL", "SETUSER", "default", "-info")
        assert "does not say its maxmemory-policy" in (await store.server()).warnings()[0]
