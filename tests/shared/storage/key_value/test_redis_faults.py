"""A failing Redis gives a named error within a bounded time, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from shared.storage.key_value import Batch, GuardFailed, RedisStore, StoreUnavailable
from strata.launcher.redis_server import RedisServer, start_redis
from tests.real_redis import restart

TIMEOUT_S = 0.5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(server.url, timeout_s=TIMEOUT_S)
    yield store
    await store.close()


def configure(server: RedisServer, name: str, value: str) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set(name, value)


@pytest.mark.parametrize("signal_no", [signal.SIGTERM, signal.SIGKILL])
async def test_nothing_acknowledged_is_lost_by_a_restart(
    server: RedisServer, store: RedisStore, signal_no: signal.Signals
) -> None:
    ids = []
    for n in range(50):
        ids += await store.commit(Batch().put("state", b"%d" % n).append("rounds", b"%d" % n))
    os.kill(server.pid, signal_no)
    restart(server)
    await asyncio.sleep(0.05)
    assert await store.get("state") == b"49"
    assert [entry.id for entry in await store.read("rounds")] == ids


async def test_a_store_recovers_after_a_restart_of_redis(server: RedisServer, store: RedisStore) -> None:
    await asyncio.gather(*(store.put(f"k{n}", b"1") for n in range(8)))  # several pooled connections
    restart(server)
    await asyncio.sleep(0.05)  # the event loop, blocked by the restart, learns that connections are closed
    await asyncio.gather(*(store.put(f"k{n}", b"2") for n in range(8)))
    assert set((await store.scan("k")).values()) == {b"2"}


async def test_every_call_on_an_absent_redis_ends_with_its_address(server: RedisServer, store: RedisStore) -> None:
    await store.put("a", b"1")
    server.stop()
    calls = [
        store.ping(),
        store.get("a"),
        store.put("a", b"1"),
        store.delete("a"),
        store.scan("a"),
        store.keys("a"),
        store.delete_prefix("a"),
        store.append("s", b"1"),
        store.read("s"),
        store.read("s", block_s=60),
        store.commit(Batch().put("a", b"1")),
        store.commit(Batch().expect("a", b"1").put("a", b"2")),
    ]
    began = time.monotonic()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - began < 5
    for answer in answers:
        assert isinstance(answer, StoreUnavailable)
        assert answer.status == 503
        assert "redis.sock" in answer.detail


async def test_a_hanging_redis_is_given_up_and_used_again_later(server: RedisServer, store: RedisStore) -> None:
    await store.put("a", b"1")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        for call in (store.get("a"), store.read("s", block_s=60), store.commit(Batch().expect("a", b"1"))):
            with pytest.raises(StoreUnavailable):
                await call
        assert time.monotonic() - began < 10 * TIMEOUT_S
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await store.get("a") == b"1"


async def test_a_stream_without_entries_does_not_count_as_a_hang(store: RedisStore) -> None:
    began = time.monotonic()
    assert await store.read("s", block_s=3 * TIMEOUT_S) == []
    assert time.monotonic() - began > 2.9 * TIMEOUT_S


async def test_an_append_that_is_not_answered_is_not_sent_again(server: RedisServer, store: RedisStore) -> None:
    await store.ping()
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):
            await store.append("s", b"1")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert len(await store.read("s", block_s=5)) == 1
    await asyncio.sleep(0.1)
    assert len(await store.read("s")) == 1


async def test_a_blocked_reader_gets_an_error_when_redis_stops(server: RedisServer, store: RedisStore) -> None:
    reader = asyncio.create_task(store.read("s", block_s=60))
    await asyncio.sleep(0.05)
    server.stop()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(reader, 5)


async def test_a_commit_with_a_lost_answer_differs_from_a_failed_one(server: RedisServer, store: RedisStore) -> None:
    await store.put("state", b"1")
    batch = Batch().expect("state", b"1").put("state", b"2").append("rounds", b"2")
    await store.commit(batch)  # as if the answer had not arrived
    with pytest.raises(GuardFailed) as caught:
        await store.commit(batch)
    assert caught.value.found == b"2"
    assert len(await store.read("rounds")) == 1


async def test_a_connection_lost_within_a_guarded_commit_is_unavailability_and_not_a_conflict(
    server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("state", b"1")
    check = RedisStore._check_guards

    async def check_then_lose(self: RedisStore, pipe: object, batch: Batch) -> None:
        await check(self, pipe, batch)  # type: ignore[arg-type]
        monkeypatch.undo()
        restart(server)  # Redis is available again at once, so that a second attempt would succeed

    monkeypatch.setattr(RedisStore, "_check_guards", check_then_lose)
    with pytest.raises(StoreUnavailable):
        await store.commit(Batch().expect("state", b"1").put("state", b"2"))


async def test_a_guard_rewritten_with_the_same_value_is_checked_again(
    server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("state", b"1")
    check = RedisStore._check_guards
    touched: list[bool] = []

    async def check_then_touch(self: RedisStore, pipe: object, batch: Batch) -> None:
        await check(self, pipe, batch)  # type: ignore[arg-type]
        if not touched:
            await self.put("state", b"1")
            touched.append(True)

    monkeypatch.setattr(RedisStore, "_check_guards", check_then_touch)
    await store.commit(Batch().expect("state", b"1").put("state", b"2"))
    assert touched == [True]
    assert await store.get("state") == b"2"


async def test_a_guard_changed_between_check_and_commit_fails_it(
    server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("state", b"1")
    check = RedisStore._check_guards

    async def check_then_change(self: RedisStore, pipe: object, batch: Batch) -> None:
        await check(self, pipe, batch)  # type: ignore[arg-type]
        await self.put("state", b"rival")

    monkeypatch.setattr(RedisStore, "_check_guards", check_then_change)
    with pytest.raises(GuardFailed) as caught:
        await store.commit(Batch().expect("state", b"1").put("state", b"2"))
    assert caught.value.found == b"rival"
    assert await store.get("state") == b"rival"


async def test_an_out_of_memory_error_is_named_and_shows_no_value(server: RedisServer, store: RedisStore) -> None:
    configure(server, "maxmemory", "1")
    batch = Batch().put("a", b"secret" * 10)
    answers = await asyncio.gather(store.put("a", b"secret"), store.commit(batch), return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, StoreUnavailable)
        assert "maxmemory" in answer.detail
        assert "secret" not in answer.detail
    configure(server, "maxmemory", "0")
    await store.put("a", b"1")


async def test_no_message_shows_a_password(server: RedisServer) -> None:
    store = RedisStore("redis://:hunter2@127.0.0.1:1/0", timeout_s=TIMEOUT_S)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as caught:
        await store.ping()
    assert "hunter2" not in str(caught.value)
    await store.close()


async def test_more_calls_at_once_than_connections_all_succeed(server: RedisServer) -> None:
    store = RedisStore(server.url, max_connections=3)
    await asyncio.gather(*(store.put(f"k{n:03d}", b"%d" % n) for n in range(300)))
    found = await store.scan("k")
    assert [int(value) for value in found.values()] == list(range(300))
    await store.close()


async def test_blocked_readers_do_not_block_commands(server: RedisServer) -> None:
    store = RedisStore(server.url, max_connections=1, max_readers=8)
    readers = [asyncio.create_task(store.read("s", block_s=20)) for _ in range(8)]
    await asyncio.sleep(0.1)
    assert await asyncio.wait_for(store.commit(Batch().put("a", b"1")), 2) == []
    await store.append("s", b"1")
    assert all(len(entries) == 1 for entries in await asyncio.gather(*readers))
    await store.close()
