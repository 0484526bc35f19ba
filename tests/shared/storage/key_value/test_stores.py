"""One set of tests for all stores."""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.core.errors import Conflict
from shared.storage.key_value import (
    BadEntryId,
    Batch,
    Entry,
    FencedStore,
    GuardFailed,
    RedisStore,
    StandingBy,
    Store,
    WrongKind,
)
from shared.storage.key_value.store import Put, parse_entry_id
from strata.launcher.redis_server import RedisServer
from tests.fakes.memory_store import MemoryStore

TTL_S = 60.0


class Clock:
    """Monotonic seconds that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class StoreUnderTest(ABC):
    """A store, and a separate prefix for the keys of a test."""

    store: Store

    def __init__(self) -> None:
        self.prefix = f"t{uuid.uuid4().hex}:"

    def key(self, name: str) -> str:
        return self.prefix + name

    @abstractmethod
    async def advance(self, seconds: float) -> None:
        """Let time pass for values that expire."""

    @abstractmethod
    async def n_blocked(self) -> int:
        """Returns the number of readers that wait for an entry."""

    def reader(self, **options: Any) -> asyncio.Task[list[Entry]]:
        """Begin to read the stream `s`."""
        return asyncio.create_task(self.store.read(self.key("s"), **options))

    async def until_blocked(self, *readers: asyncio.Task[list[Entry]]) -> None:
        """Wait until these readers and no others wait for an entry, or one of them has ended."""
        while await self.n_blocked() != len(readers) and not any(map(asyncio.Task.done, readers)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class InMemory(StoreUnderTest):
    """A store in this process with a clock that the test advances."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.store = self.memory = MemoryStore(self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    async def n_blocked(self) -> int:
        return self.memory.n_blocked()


class InRedis(StoreUnderTest):
    """A store in Redis, whose clock cannot be set: instead, all values get less time to live."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self.store, self.redis = RedisStore(server.url), Redis.from_url(server.url)

    async def advance(self, seconds: float) -> None:
        for key in await self.redis.keys(f"{self.prefix}*"):
            left_ms = await self.redis.pttl(key)
            if left_ms >= 0:  # -1: it does not expire
                await self.redis.pexpire(key, left_ms - round(1000 * seconds))  # no time left: it is deleted

    async def n_blocked(self) -> int:
        return int((await self.redis.info("clients"))["blocked_clients"])


class Token:
    """A fence whose owner is this process while `held`."""

    def __init__(self, key: str) -> None:
        self.key, self.held = key, True

    def guard(self) -> tuple[str, bytes]:
        if not self.held:
            raise StandingBy("another process owns it")
        return self.key, b"mine"

    async def found(self, value: bytes | None, expected: bytes) -> None:
        self.held = False


class Fenced(InMemory):
    """The store in this process behind a fence; the token has no prefix of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.fence = Token("owner")
        self.store = FencedStore(self.memory, self.fence)
        self.memory._put(Put("owner", b"mine", None))


@pytest.fixture(params=["memory", "redis", "fenced"])
async def trainer(request: pytest.FixtureRequest) -> AsyncIterator[StoreUnderTest]:
    if request.param != "redis":
        yield InMemory() if request.param == "memory" else Fenced()
        return
    found = InRedis(request.getfixturevalue("redis_server"))
    yield found
    await found.store.close()
    await found.redis.aclose()


class TestValues:
    async def test_a_value_round_trips_byte_for_byte_and_an_empty_one_is_not_absent(
        self, trainer: StoreUnderTest
    ) -> None:
        for value in (b"\x00\xff\r\n", b""):
            await trainer.store.put(trainer.key("a"), value)
            assert await trainer.store.get(trainer.key("a")) == value
        assert await trainer.store.get(trainer.key("absent")) is None

    async def test_a_value_is_gone_after_its_ttl_and_not_before(self, trainer: StoreUnderTest) -> None:
        await trainer.store.put(trainer.key("gone"), b"1", ttl_s=TTL_S)
        await trainer.store.put(trainer.key("long"), b"1", ttl_s=1000 * TTL_S)
        await trainer.store.put(trainer.key("kept"), b"1", ttl_s=TTL_S)
        await trainer.store.put(trainer.key("kept"), b"2")  # removes the expiry
        await trainer.store.commit(Batch().put(trainer.key("of a batch"), b"1", ttl_s=TTL_S))
        assert (
            await trainer.store.get(trainer.key("gone")) == await trainer.store.get(trainer.key("of a batch")) == b"1"
        )
        await trainer.advance(1.5 * TTL_S)
        assert await trainer.store.get(trainer.key("gone")) is None
        assert await trainer.store.scan(trainer.prefix) == {trainer.key("long"): b"1", trainer.key("kept"): b"2"}
        assert await trainer.store.keys(trainer.prefix) == [trainer.key("kept"), trainer.key("long")]
        assert await trainer.store.delete(trainer.key("gone")) == 0

    @pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
    async def test_a_ttl_in_the_past_is_refused(self, trainer: StoreUnderTest, ttl_s: float) -> None:
        with pytest.raises(ValueError, match="ttl_s"):
            await trainer.store.put(trainer.key("a"), b"1", ttl_s=ttl_s)
        with pytest.raises(ValueError, match="ttl_s"):
            Batch().put(trainer.key("a"), b"1", ttl_s=ttl_s)

    async def test_delete_counts_the_existing_keys(self, trainer: StoreUnderTest) -> None:
        await trainer.store.put(trainer.key("a"), b"1")
        await trainer.store.append(trainer.key("s"), b"1")
        assert await trainer.store.delete(trainer.key("a"), trainer.key("s"), trainer.key("absent")) == 2
        assert await trainer.store.delete() == 0
        assert await trainer.store.keys(trainer.prefix) == []

    async def test_scan_returns_the_sorted_keys_of_its_prefix_without_streams(self, trainer: StoreUnderTest) -> None:
        for name in ("p:2", "p:1", "q:1"):
            await trainer.store.put(trainer.key(name), name.encode())
        await trainer.store.append(trainer.key("p:stream"), b"1")
        found = await trainer.store.scan(trainer.key("p:"))
        assert list(found.items()) == [(trainer.key("p:1"), b"p:1"), (trainer.key("p:2"), b"p:2")]
        assert await trainer.store.keys(trainer.key("p:")) == [trainer.key(f"p:{n}") for n in ("1", "2", "stream")]

    async def test_wildcards_in_a_prefix_are_literal(self, trainer: StoreUnderTest) -> None:
        for name in ("a*b:1", "axb:1", "[a-z]:1", "b:1", "a?:1", "\\:1", "^:1"):
            await trainer.store.put(trainer.key(name), b"1")
        for prefix in ("a*b:", "[a-z]:", "a?:", "\\:", "^:"):
            assert await trainer.store.keys(trainer.key(prefix)) == [trainer.key(f"{prefix}1")]

    async def test_delete_prefix_takes_thousands_of_keys_of_both_kinds_and_no_other(
        self, trainer: StoreUnderTest
    ) -> None:
        batch = Batch().append(trainer.key("p:stream"), b"1").put(trainer.key("q"), b"1")
        for n in range(2500):
            batch.put(trainer.key(f"p:{n}"), b"1")
        await trainer.store.commit(batch)
        assert len(await trainer.store.scan(trainer.key("p:"))) == 2500
        assert await trainer.store.delete_prefix(trainer.key("p:")) == 2501
        assert await trainer.store.delete_prefix(trainer.key("p:")) == 0
        assert await trainer.store.keys(trainer.prefix) == [trainer.key("q")]

    async def test_a_value_of_the_wrong_kind_is_named(self, trainer: StoreUnderTest) -> None:
        await trainer.store.put(trainer.key("a"), b"1")
        await trainer.store.append(trainer.key("s"), b"1")
        with pytest.raises(WrongKind, match=trainer.key("s")):
            await trainer.store.get(trainer.key("s"))
        with pytest.raises(WrongKind, match=trainer.key("a")):
            await trainer.store.append(trainer.key("a"), b"1")
        with pytest.raises(WrongKind, match=trainer.key("a")):
            await trainer.store.read(trainer.key("a"))
        with pytest.raises(WrongKind, match=f"{trainer.key('a')}|a key of the batch"):
            await trainer.store.commit(Batch().append(trainer.key("a"), b"1"))
        await trainer.store.put(trainer.key("s"), b"2")  # takes the stream's place
        assert await trainer.store.get(trainer.key("s")) == b"2"


class TestStreams:
    async def test_entries_are_read_in_order_after_an_id(self, trainer: StoreUnderTest) -> None:
        assert await trainer.store.last_id(trainer.key("s")) == "0"
        ids = [await trainer.store.append(trainer.key("s"), b"%d" % n) for n in range(5)]
        assert await trainer.store.last_id(trainer.key("s")) == ids[-1]
        assert [entry.data for entry in await trainer.store.read(trainer.key("s"))] == [b"0", b"1", b"2", b"3", b"4"]
        after = await trainer.store.read(trainer.key("s"), after=ids[1], limit=2)
        assert [(entry.id, entry.data) for entry in after] == [(ids[2], b"2"), (ids[3], b"3")]
        assert await trainer.store.read(trainer.key("s"), after=ids[4]) == []
        assert await trainer.store.read(trainer.key("s"), limit=0) == []

    async def test_fields_round_trip_and_nan_is_refused(self, trainer: StoreUnderTest) -> None:
        await trainer.store.append(trainer.key("s"), {"round": 3, "loss": 0.25, "who": "ä"})
        (entry,) = await trainer.store.read(trainer.key("s"))
        assert entry.fields == {"round": 3, "loss": 0.25, "who": "ä"}
        with pytest.raises(ValueError, match="JSON"):
            await trainer.store.append(trainer.key("s"), {"loss": float("nan")})
        assert len(await trainer.store.read(trainer.key("s"))) == 1

    async def test_a_blocked_reader_gets_what_is_appended(self, trainer: StoreUnderTest) -> None:
        first = await trainer.store.append(trainer.key("s"), b"1")
        reader = trainer.reader(after=first, block_s=60)
        await trainer.until_blocked(reader)
        assert not reader.done()
        second = await trainer.store.append(trainer.key("s"), b"2")
        assert [(entry.id, entry.data) for entry in await reader] == [(second, b"2")]

    async def test_a_blocked_reader_returns_empty_after_its_time_limit(self, trainer: StoreUnderTest) -> None:
        began = time.monotonic()
        assert await trainer.store.read(trainer.key("s"), block_s=0.2) == []
        assert time.monotonic() - began >= 0.2  # the same clock, so there is no margin

    async def test_a_reader_beyond_the_end_is_not_served_older_entries(self, trainer: StoreUnderTest) -> None:
        """If the append served it, it would have returned before the twenty calls that follow."""
        reader = trainer.reader(after="99999999999999-0", block_s=60)
        await trainer.until_blocked(reader)
        await trainer.store.append(trainer.key("s"), b"1")
        for _ in range(20):
            assert len(await trainer.store.read(trainer.key("s"))) == 1
        assert not reader.done()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    async def test_a_cancelled_reader_does_not_affect_others(self, trainer: StoreUnderTest) -> None:
        readers = [trainer.reader(block_s=60) for _ in range(20)]
        await trainer.until_blocked(*readers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        last = trainer.reader(block_s=60)
        await trainer.until_blocked(last)
        await trainer.store.append(trainer.key("s"), b"1")
        assert [entry.data for entry in await last] == [b"1"]

    @pytest.mark.parametrize("after", ["", "x", "1-", "-1", "1-2-3", "$", "9" * 20, "1-18446744073709551616", "٣"])
    async def test_an_invalid_position_is_refused_by_name(self, trainer: StoreUnderTest, after: str) -> None:
        with pytest.raises(BadEntryId):
            await trainer.store.read(trainer.key("s"), after=after)

    async def test_a_position_may_lack_its_second_half(self, trainer: StoreUnderTest) -> None:
        entry_id = await trainer.store.append(trainer.key("s"), b"1")
        milliseconds, sequence = parse_entry_id(entry_id)
        assert sequence == 0
        assert await trainer.store.read(trainer.key("s"), after=str(milliseconds)) == []
        assert len(await trainer.store.read(trainer.key("s"), after=str(milliseconds - 1))) == 1


class TestCommit:
    async def test_all_operations_of_a_batch_are_executed(self, trainer: StoreUnderTest) -> None:
        await trainer.store.put(trainer.key("old"), b"1")
        batch = Batch().expect(trainer.key("state"), None).delete(trainer.key("old"))
        batch.put(trainer.key("state"), b"2").append(trainer.key("s"), {"round": 1}).append(trainer.key("t"), b"x")
        ids = await trainer.store.commit(batch.append(trainer.key("s"), b"2").append(trainer.key("s"), b"3"))
        parsed = [parse_entry_id(ids[n]) for n in (0, 2, 3)]
        assert parsed == sorted(set(parsed)), "they grow also within a millisecond"
        assert await trainer.store.keys(trainer.prefix) == [trainer.key(n) for n in ("s", "state", "t")]
        assert [entry.id for entry in await trainer.store.read(trainer.key("s"))] == [ids[0], ids[2], ids[3]]
        assert [entry.id for entry in await trainer.store.read(trainer.key("t"))] == [ids[1]]

    async def test_an_empty_batch_changes_nothing(self, trainer: StoreUnderTest) -> None:
        assert await trainer.store.commit(Batch()) == []
        assert await trainer.store.commit(Batch().expect(trainer.key("a"), None)) == []
        assert await trainer.store.keys(trainer.prefix) == []

    @pytest.mark.parametrize("expected", [None, b"other", b""])
    async def test_a_failed_guard_changes_nothing_and_names_the_value_found(
        self, trainer: StoreUnderTest, expected: bytes | None
    ) -> None:
        await trainer.store.put(trainer.key("state"), b"1")
        batch = Batch().expect(trainer.key("state"), expected).put(trainer.key("state"), b"2")
        batch.delete(trainer.key("state")).append(trainer.key("s"), b"1")
        with pytest.raises(GuardFailed) as caught:
            await trainer.store.commit(batch)
        assert isinstance(caught.value, Conflict)
        assert (caught.value.key, caught.value.found) == (trainer.key("state"), b"1")
        assert await trainer.store.scan(trainer.prefix) == {trainer.key("state"): b"1"}
        assert await trainer.store.keys(trainer.prefix) == [trainer.key("state")]

    async def test_an_expired_value_is_absent_to_a_guard(self, trainer: StoreUnderTest) -> None:
        await trainer.store.put(trainer.key("lease"), b"me", ttl_s=TTL_S)
        take = Batch().expect(trainer.key("lease"), None).put(trainer.key("lease"), b"you")
        with pytest.raises(GuardFailed):
            await trainer.store.commit(take)
        await trainer.advance(1.5 * TTL_S)
        await trainer.store.commit(take)
        assert await trainer.store.get(trainer.key("lease")) == b"you"

    async def test_of_many_concurrent_commits_of_a_step_exactly_one_succeeds(self, trainer: StoreUnderTest) -> None:
        async def step(rival: int, number: int) -> bool:
            batch = Batch().expect(trainer.key("n"), b"%d" % number).put(trainer.key("n"), b"%d" % (number + 1))
            try:
                await trainer.store.commit(batch.append(trainer.key("s"), b"%d" % rival))
            except GuardFailed:
                return False
            return True

        await trainer.store.put(trainer.key("n"), b"0")
        for number in range(10):
            won = await asyncio.gather(*(step(rival, number) for rival in range(6)))
            assert sum(won) == 1
        assert await trainer.store.get(trainer.key("n")) == b"10"
        assert len(await trainer.store.read(trainer.key("s"))) == 10


async def test_memory_ids_grow_although_the_wall_clock_jumps_back() -> None:
    wall = Clock()
    store = MemoryStore(wall=wall)
    ids = [await store.append("s", b"1")]
    wall.now -= 500
    ids += [await store.append("s", b"2"), await store.append("s", b"3")]
    wall.now += 501
    ids.append(await store.append("s", b"4"))
    assert ids == ["1000000-0", "1000000-1", "1000000-2", "1001000-0"]
    assert [entry.data for entry in await store.read("s", after=ids[0])] == [b"2", b"3", b"4"]


class TestFence:
    async def test_no_write_of_a_process_that_is_not_the_owner_is_carried_out(self) -> None:
        fenced = Fenced()
        await fenced.store.put("kept", b"1")
        before = dict(await fenced.memory.scan(""))
        fenced.memory._put(Put("owner", b"another", None))
        batch = Batch().put("kept", b"2").append("s", b"2")
        writes = [
            fenced.store.put("kept", b"2"),
            fenced.store.append("s", b"2"),
            fenced.store.delete("kept"),
            fenced.store.delete_prefix("k"),
            fenced.store.commit(batch),
        ]
        for write in writes:
            fenced.fence.held = True  # each finds out by itself
            with pytest.raises(StandingBy):
                await write
        assert await fenced.memory.scan("") == {**before, "owner": b"another"}
        assert await fenced.memory.keys("s") == []
        assert await fenced.store.get("kept") == b"1"
