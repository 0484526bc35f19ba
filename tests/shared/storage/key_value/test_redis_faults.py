"""A failing Redis gives a named error within a bounded time, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from redis.asyncio import Redis

from shared.storage.key_value import Batch, GuardFailed, RedisStore, StoreUnavailable
from strata.launcher.redis_server import RedisServer, start_redis
from tests.real_redis import restart

T = TypeVar("T")
Opener = Callable[..., RedisStore]
GIVEN_UP_S = 0.5
"""Time limit of stores whose Redis is not to answer; that of all others is long enough for a busy machine."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def store(server: RedisServer, open_store: Opener) -> RedisStore:
    return open_store(server.url)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call of an impatient store until it succeeds: a busy machine may be too slow for it at first."""
    while True:
        with suppress(StoreUnavailable):
            return await call()


async def learn_of_closed_connections() -> None:
    """Let the event loop, blocked while Redis ended, read from its connections that they are closed."""
    for _ in range(2):  # in the first turn the connections become ready, in the second they have been read
        await asyncio.sleep(0)


async def until_blocked(server: RedisServer, n_readers: int) -> None:
    async with Redis.from_url(server.url) as client:
        while (await client.info("clients"))["blocked_clients"] != n_readers:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)


def configure(server: RedisServer, name: str, value: str) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_set(name, value)


@pytest.mark.parametrize("signal_no", [signal.SIGTERM, signal.SIGKILL])
async def test_a_store_recovers_after_a_restart_of_redis_and_nothing_acknowledged_is_lost(
    server: RedisServer, store: RedisStore, signal_no: signal.Signals
) -> None:
    ids = []
    for n in range(50):
        ids += await store.commit(Batch().put("state", b"%d" % n).append("rounds", b"%d" % n))
    await asyncio.gather(*(store.put(f"k{n}", b"1") for n in range(8)))  # several pooled connections
    os.kill(server.pid, signal_no)
    restart(server)
    await learn_of_closed_connections()
    await asyncio.gather(*(store.put(f"k{n}", b"2") for n in range(8)))
    assert set((await store.scan("k")).values()) == {b"2"}
    assert await store.get("state") == b"49"
    assert [entry.id for entry in await store.read("rounds")] == ids


async def test_every_call_on_an_absent_redis_ends_with_its_address(server: RedisServer, store: RedisStore) -> None:
    """A call that does not end is cancelled by the time limit of the test."""
    await store.put("a", b"1")
    blocked = asyncio.create_task(store.read("s", block_s=3600))
    await until_blocked(server, 1)
    server.stop()
    calls: list[Awaitable[Any]] = [blocked, store.ping(), store.get("a"), store.put("a", b"1"), store.delete("a")]
    calls += [store.scan("a"), store.keys("a"), store.delete_prefix("a"), store.append("s", b"1"), store.read("s")]
    calls += [store.commit(Batch().put("a", b"1")), store.commit(Batch().expect("a", b"1").put("a", b"2"))]
    for answer in await asyncio.gather(*calls, store.read("s", block_s=3600), return_exceptions=True):
        assert isinstance(answer, StoreUnavailable)
        assert answer.status == 503
        assert "redis.sock" in answer.detail


async def test_a_hanging_redis_is_given_up_and_used_again_later(server: RedisServer, open_store: Opener) -> None:
    """A call that does not end is cancelled by the time limit of the test."""
    impatient = open_store(server.url, timeout_s=GIVEN_UP_S)
    await insist(lambda: impatient.put("a", b"1"))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        hanging = [impatient.get("a"), impatient.read("s", block_s=3600), impatient.commit(Batch().expect("a", b"1"))]
        for call in hanging:
            with pytest.raises(StoreUnavailable):
                await call
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await insist(lambda: impatient.get("a")) == b"1"


async def test_a_stream_without_entries_does_not_count_as_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read of a long wait ends well before the time limit of an answer."""
    now_s, waits_s = 1000.0, list[float]()

    async def xread(self: Redis, streams: object, count: int | None, block: int | None) -> list[object]:
        nonlocal now_s
        waits_s.append((block or 0) / 1000)
        now_s += waits_s[-1]
        return []

    monkeypatch.setattr(Redis, "xread", xread)
    store = RedisStore("redis://127.0.0.1:1/0", timeout_s=4.0, clock=lambda: now_s)
    assert await store.read("s", block_s=9.0) == []
    assert waits_s == [2.0, 2.0, 2.0, 2.0, 1.0, 0.0]


async def test_an_append_that_is_not_answered_is_not_sent_again(tmp_path: Path, open_store: Opener) -> None:
    received = bytearray()

    async def disconnect_at_an_append(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            received.extend(data)
            if b"XADD" in data:
                break
            writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()

    path = tmp_path / "redis.sock"
    async with await asyncio.start_unix_server(disconnect_at_an_append, path):
        with pytest.raises(StoreUnavailable):
            await open_store(f"unix://{path}?db=0").append("s", b"1")
    assert received.count(b"XADD") == 1


@pytest.mark.parametrize("is_connected", [False, True])
async def test_a_reader_ends_in_whatever_moment_it_is_cancelled(
    redis_server: RedisServer, open_store: Opener, is_connected: bool
) -> None:
    going_on = []
    for n_turns in range(30):
        store = open_store(redis_server.url)
        if is_connected:
            await store.read("none", block_s=0.001)
        reader = asyncio.create_task(store.read("none", block_s=30))
        for _ in range(n_turns):
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait({reader}, timeout=5)
        if not reader.cancelled():
            going_on.append(n_turns)
    assert going_on == []


async def test_a_commit_with_a_lost_answer_differs_from_a_failed_one(
    redis_server: RedisServer, open_store: Opener
) -> None:
    store = open_store(redis_server.url)
    await store.delete("rounds")
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


@pytest.mark.parametrize(("between", "left"), [(b"1", b"2"), (b"rival", b"rival")], ids=["same value", "another"])
async def test_a_guard_written_between_check_and_commit_is_checked_again(
    redis_server: RedisServer, open_store: Opener, monkeypatch: pytest.MonkeyPatch, between: bytes, left: bytes
) -> None:
    store = open_store(redis_server.url)
    await store.put("guard", b"1")
    check, touched = RedisStore._check_guards, list[bool]()

    async def check_then_write(self: RedisStore, pipe: object, batch: Batch) -> None:
        await check(self, pipe, batch)  # type: ignore[arg-type]
        if not touched:
            await self.put("guard", between)
            touched.append(True)

    monkeypatch.setattr(RedisStore, "_check_guards", check_then_write)
    with nullcontext() if left == b"2" else pytest.raises(GuardFailed, match="guard"):
        await store.commit(Batch().expect("guard", b"1").put("guard", b"2"))
    assert touched == [True]
    assert await store.get("guard") == left


async def test_errors_are_named_and_show_no_value_and_no_password(
    server: RedisServer, store: RedisStore, open_store: Opener
) -> None:
    configure(server, "maxmemory", "1")
    batch = Batch().put("a", b"secret" * 10)
    answers = await asyncio.gather(store.put("a", b"secret"), store.commit(batch), return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, StoreUnavailable)
        assert "maxmemory" in answer.detail
        assert "secret" not in answer.detail
    configure(server, "maxmemory", "0")
    await store.put("a", b"1")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as caught:
        await open_store("redis://:hunter2@127.0.0.1:1/0").ping()
    assert "hunter2" not in str(caught.value)


async def test_more_calls_than_connections_succeed_and_blocked_readers_do_not_block_commands(
    redis_server: RedisServer, open_store: Opener
) -> None:
    store = open_store(redis_server.url, max_connections=3)
    await asyncio.gather(*(store.put(f"many{n:03d}", b"%d" % n) for n in range(300)))
    assert [int(value) for value in (await store.scan("many")).values()] == list(range(300))
    store = open_store(redis_server.url, max_connections=1, max_readers=8)
    await store.delete("s")
    readers = [asyncio.create_task(store.read("s", block_s=3600)) for _ in range(8)]
    await until_blocked(redis_server, 8)
    assert await store.commit(Batch().put("a", b"1")) == []
    assert not any(reader.done() for reader in readers)
    await store.append("s", b"1")
    assert all(len(entries) == 1 for entries in await asyncio.gather(*readers))
