"""One set of tests for all stores."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
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
FENCE = "owner"


class Clock:
    """Monotonic seconds that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class StoreUnderTest(ABC):
    """A store without keys."""

    store: Store

    @abstractmethod
    async def advance(self, seconds: float) -> None:
        """Let time pass for values that expire."""

    @abstractmethod
    async def n_blocked(self) -> int:
        """Returns the number of readers that wait for an entry."""

    async def keys(self) -> list[str]:
        """Returns the keys that a test has made; a fence has one of its own."""
        return [key for key in await self.store.keys("") if key != FENCE]

    async def values(self) -> dict[str, bytes]:
        return {key: value for key, value in (await self.store.scan("")).items() if key != FENCE}

    def reader(self, **options: Any) -> asyncio.Task[list[Entry]]:
        """Begin to read the stream `s`."""
        return asyncio.create_task(self.store.read("s", **options))

    async def until_blocked(self, *readers: asyncio.Task[list[Entry]]) -> None:
        """Wait until these readers and no others wait for an entry, or one of them has ended."""
        while await self.n_blocked() != len(readers) and not any(map(asyncio.Task.done, readers)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class InMemory(StoreUnderTest):
    """A store in this process with a clock that the test advances."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = self.memory = MemoryStore(self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.now += seconds

    async def n_blocked(self) -> int:
        return self.memory.n_blocked()


class InRedis(StoreUnderTest):
    """A database of Redis, whose clock cannot be set: instead, all values get less time to live."""

    def __init__(self, server: RedisServer) -> None:
        url = server.url.replace("db=0", "db=7")
        self.store, self.redis = RedisStore(url), Redis.from_url(url)

    async def advance(self, seconds: float) -> None:
        for key in await self.redis.keys():
            left_ms = await self.redis.pttl(key)
            if left_ms >= 0:  # -1: it does not expire
                await self.redis.pexpire(key, left_ms - round(1000 * seconds))  # no time left: it is deleted

    async def n_blocked(self) -> int:
        return int((await self.redis.info("clients"))["blocked_clients"])


class Token:
    """A fence whose owner is this process while `held`."""

    held = True

    def guard(self) -> tuple[str, bytes]:
        if not self.held:
            raise StandingBy("another process owns it")
        return FENCE, b"mine"

    async def found(self, value: bytes | None, expected: bytes) -> None:
        self.held = False


class Fenced(InMemory):
    """The store in this process behind a fence."""

    def __init__(self) -> None:
        super().__init__()
        self.fence = Token()
        self.store = FencedStore(self.memory, self.fence)
        self.memory._put(Put(FENCE, b"mine", None))


@pytest.fixture(params=["memory", "redis", "fenced"])
async def tested(request: pytest.FixtureRequest) -> AsyncIterator[StoreUnderTest]:
    if request.param != "redis":
        yield InMemory() if request.param == "memory" else Fenced()
        return
    found = InRedis(request.getfixturevalue("redis_server"))
    await found.redis.flushdb()
    yield found
    await found.store.close()
    await found.redis.aclose()


@pytest.fixture
def store(tested: StoreUnderTest) -> Store:
    return tested.store


class TestValues:
    async def test_a_value_round_trips_byte_for_byte_and_an_empty_one_is_not_absent(self, store: Store) -> None:
        for value in (b"\x00\xff\r\n", b""):
            await store.put("a", value)
            assert await store.get("a") == value
        assert await store.get("absent") is None

    async def test_a_value_is_gone_after_its_ttl_and_not_before(self, store: Store, tested: StoreUnderTest) -> None:
        await store.put("gone", b"1", ttl_s=TTL_S)
        await store.put("long", b"1", ttl_s=1000 * TTL_S)
        await store.put("kept", b"1", ttl_s=TTL_S)
        await store.put("kept", b"2")  # removes the expiry
        await store.commit(Batch().put("of a batch", b"1", ttl_s=TTL_S))
        assert await store.get("gone") == await store.get("of a batch") == b"1"
        await tested.advance(1.5 * TTL_S)
        assert await store.get("gone") is None
        assert await tested.values() == {"long": b"1", "kept": b"2"}
        assert await tested.keys() == ["kept", "long"]
        assert await store.delete("gone") == 0

    @pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
    async def test_a_ttl_in_the_past_is_refused(self, store: Store, ttl_s: float) -> None:
        with pytest.raises(ValueError, match="ttl_s"):
            await store.put("a", b"1", ttl_s=ttl_s)
        with pytest.raises(ValueError, match="ttl_s"):
            Batch().put("a", b"1", ttl_s=ttl_s)

    async def test_scan_returns_the_sorted_keys_of_its_prefix_without_streams(self, store: Store) -> None:
        for name in ("p:2", "p:1", "q:1"):
            await store.put(name, name.encode())
        await store.append("p:stream", b"1")
        found = await store.scan("p:")
        assert list(found.items()) == [("p:1", b"p:1"), ("p:2", b"p:2")]
        assert await store.keys("p:") == [f"p:{n}" for n in ("1", "2", "stream")]

    async def test_wildcards_in_a_prefix_are_literal(self, store: Store) -> None:
        for name in ("a*b:1", "axb:1", "[a-z]:1", "b:1", "a?:1", "\\:1", "^:1"):
            await store.put(name, b"1")
        for prefix in ("a*b:", "[a-z]:", "a?:", "\\:", "^:"):
            assert await store.keys(prefix) == [f"{prefix}1"]

    async def test_delete_prefix_takes_its_keys_of_both_kinds_alone(self, store: Store, tested: StoreUnderTest) -> None:
        batch = Batch().append("p:stream", b"1").put("q", b"1")
        for n in range(2500):
            batch.put(f"p:{n}", b"1")
        await store.commit(batch)
        assert len(await store.scan("p:")) == 2500
        assert await store.delete_prefix("p:") == 2501
        assert await store.delete_prefix("p:") == 0
        assert await tested.keys() == ["q"]

    async def test_a_value_of_the_wrong_kind_is_named(self, store: Store) -> None:
        await store.put("a", b"1")
        await store.append("s", b"1")
        with pytest.raises(WrongKind, match=r"^s holds"):
            await store.get("s")
        with pytest.raises(WrongKind, match=r"^a holds"):
            await store.append("a", b"1")
        with pytest.raises(WrongKind, match=r"^a holds"):
            await store.read("a")
        with pytest.raises(WrongKind, match=r"^a holds|a key of the batch"):
            await store.commit(Batch().append("a", b"1"))
        await store.put("s", b"2")  # takes the stream's place
        assert await store.get("s") == b"2"


class TestStreams:
    async def test_entries_are_read_in_order_after_an_id(self, store: Store) -> None:
        assert await store.last_id("s") == "0"
        ids = [await store.append("s", b"%d" % n) for n in range(5)]
        assert await store.last_id("s") == ids[-1]
        assert [entry.data for entry in await store.read("s")] == [b"0", b"1", b"2", b"3", b"4"]
        after = await store.read("s", after=ids[1], limit=2)
        assert [(entry.id, entry.data) for entry in after] == [(ids[2], b"2"), (ids[3], b"3")]
        assert await store.read("s", after=ids[4]) == []
        assert await store.read("s", limit=0) == []
        milliseconds, sequence = parse_entry_id(ids[0])
        assert sequence == 0
        assert len(await store.read("s", after=str(milliseconds - 1))) == 5, "a position may lack its second half"

    async def test_fields_round_trip_and_nan_is_refused(self, store: Store) -> None:
        await store.append("s", {"round": 3, "loss": 0.25, "who": "ä"})
        (entry,) = await store.read("s")
        assert entry.fields == {"round": 3, "loss": 0.25, "who": "ä"}
        with pytest.raises(ValueError, match="JSON"):
            await store.append("s", {"loss": float("nan")})
        assert len(await store.read("s")) == 1

    async def test_a_blocked_reader_gets_what_is_appended_in_time(self, store: Store, tested: StoreUnderTest) -> None:
        began = time.monotonic()
        assert await store.read("s", block_s=0.2) == []
        assert time.monotonic() - began >= 0.2  # the same clock, so there is no margin
        first = await store.append("s", b"1")
        reader = tested.reader(after=first, block_s=60)
        await tested.until_blocked(reader)
        assert not reader.done()
        second = await store.append("s", b"2")
        assert [(entry.id, entry.data) for entry in await reader] == [(second, b"2")]

    async def test_a_reader_beyond_the_end_gets_no_older_entries(self, store: Store, tested: StoreUnderTest) -> None:
        """If the append served it, it would have returned before the twenty calls that follow."""
        reader = tested.reader(after="99999999999999-0", block_s=60)
        await tested.until_blocked(reader)
        await store.append("s", b"1")
        for _ in range(20):
            assert len(await store.read("s")) == 1
        assert not reader.done()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    async def test_a_cancelled_reader_does_not_affect_others(self, store: Store, tested: StoreUnderTest) -> None:
        readers = [tested.reader(block_s=60) for _ in range(20)]
        await tested.until_blocked(*readers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        last = tested.reader(block_s=60)
        await tested.until_blocked(last)
        await store.append("s", b"1")
        assert [entry.data for entry in await last] == [b"1"]

    @pytest.mark.parametrize("after", ["", "x", "1-", "-1", "1-2-3", "$", "9" * 20, "1-18446744073709551616", "٣"])
    async def test_an_invalid_position_is_refused_by_name(self, store: Store, after: str) -> None:
        with pytest.raises(BadEntryId):
            await store.read("s", after=after)


class TestCommit:
    async def test_all_operations_of_a_batch_are_executed(self, store: Store, tested: StoreUnderTest) -> None:
        await store.put("old", b"1")
        batch = Batch().expect("state", None).delete("old")
        batch.put("state", b"2").append("s", {"round": 1}).append("t", b"x")
        ids = await store.commit(batch.append("s", b"2").append("s", b"3"))
        parsed = [parse_entry_id(ids[n]) for n in (0, 2, 3)]
        assert parsed == sorted(set(parsed)), "they grow also within a millisecond"
        assert await tested.keys() == ["s", "state", "t"]
        assert [entry.id for entry in await store.read("s")] == [ids[0], ids[2], ids[3]]
        assert [entry.id for entry in await store.read("t")] == [ids[1]]
        assert await store.commit(Batch()) == await store.commit(Batch().expect("a", None)) == []
        assert await tested.keys() == ["s", "state", "t"], "an empty batch changes nothing"
        assert await store.delete("state", "s", "absent") == 2
        assert await store.delete() == 0
        assert await tested.keys() == ["t"]

    @pytest.mark.parametrize("expected", [None, b"other", b""])
    async def test_a_failed_guard_changes_nothing_and_names_the_value_found(
        self, store: Store, tested: StoreUnderTest, expected: bytes | None
    ) -> None:
        await store.put("state", b"1")
        batch = Batch().expect("state", expected).put("state", b"2")
        batch.delete("state").append("s", b"1")
        with pytest.raises(GuardFailed) as caught:
            await store.commit(batch)
        assert isinstance(caught.value, Conflict)
        assert (caught.value.key, caught.value.found) == ("state", b"1")
        assert await tested.values() == {"state": b"1"}
        assert await tested.keys() == ["state"]

    async def test_an_expired_value_is_absent_to_a_guard(self, store: Store, tested: StoreUnderTest) -> None:
        await store.put("lease", b"me", ttl_s=TTL_S)
        take = Batch().expect("lease", None).put("lease", b"you")
        with pytest.raises(GuardFailed):
            await store.commit(take)
        await tested.advance(1.5 * TTL_S)
        await store.commit(take)
        assert await store.get("lease") == b"you"

    async def test_of_many_concurrent_commits_of_a_step_exactly_one_succeeds(self, store: Store) -> None:
        async def step(rival: int, number: int) -> bool:
            batch = Batch().expect("n", b"%d" % number).put("n", b"%d" % (number + 1))
            try:
                await store.commit(batch.append("s", b"%d" % rival))
            except GuardFailed:
                return False
            return True

        await store.put("n", b"0")
        for number in range(10):
            won = await asyncio.gather(*(step(rival, number) for rival in range(6)))
            assert sum(won) == 1
        assert await store.get("n") == b"10"
        assert len(await store.read("s")) == 10


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


async def test_no_write_of_a_process_that_is_not_the_owner_is_carried_out() -> None:
    fenced = Fenced()
    await fenced.store.put("kept", b"1")
    before = dict(await fenced.memory.scan(""))
    fenced.memory._put(Put(FENCE, b"another", None))
    store, batch = fenced.store, Batch().put("kept", b"2").append("s", b"2")
    writes: list[Awaitable[Any]] = [store.put("kept", b"2"), store.append("s", b"2"), store.delete("kept")]
    for write in (*writes, store.delete_prefix("k"), store.commit(batch)):
        fenced.fence.held = True  # each finds out by itself
        with pytest.raises(StandingBy):
            await write
    assert await fenced.memory.scan("") == {**before, FENCE: b"another"}
    assert await fenced.memory.keys("s") == []
    assert await fenced.store.get("kept") == b"1"
