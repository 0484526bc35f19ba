"""Many clients of a run's events: one reader of Redis, every event once and in order, slow ones sent away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cloud_server.runs import event_feed
from cloud_server.runs.event_feed import EventClient, EventFeeds
from cloud_server.runs.events import RunEvent
from cloud_server.runs.repository import RunRepository
from shared.core.errors import Busy
from shared.runtime.compute_thread import ComputeThread
from shared.storage.blobs import Blobs
from tests.cloud_server.streaming import opened
from tests.fakes.memory_store import MemoryStore
from tests.federation import Federation, small_spec
from tests.strata.samples import a_run

RUN = "r1"


class Stage:
    """A run of which a test writes the events, and the feeds of its clients."""

    def __init__(self, folder: Path, max_clients: int = 100) -> None:
        self.store, self.closing, self.thread = MemoryStore(), asyncio.Event(), ComputeThread()
        self.repository = RunRepository(self.store, Blobs(folder), self.thread, 9, lambda run, event: None)
        self.feeds = EventFeeds(self.repository, self.closing, max_clients)
        self.n_written = 0

    async def write(self, n: int) -> None:
        for _ in range(n):
            self.n_written += 1
            await self.repository.add_event(RUN, RunEvent("round.started", {"n": self.n_written}))

    async def end(self, status: str = "completed") -> None:
        await self.repository.save(a_run(run=RUN, status=status), RunEvent("run.status", {"status": status}))

    async def up_to_date(self) -> None:
        """Waits until all that was written was read: an append wakes the reader, which then waits again."""
        while not self.store.n_blocked():  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(0)


@asynccontextmanager
async def stage(folder: Path, **options: int) -> AsyncIterator[Stage]:
    made = Stage(folder, **options)
    await made.repository.create(a_run(run=RUN, status="running"), None, "")
    try:
        yield made
    finally:
        made.closing.set()
        made.thread.close()


def numbers(text: bytes) -> list[int]:
    """The numbers of the events in what a client was sent."""
    data = [json.loads(line[6:])["data"] for line in text.splitlines() if line.startswith(b"data: ")]
    return [found["n"] for found in data if "n" in found]


def ids(text: bytes) -> list[str]:
    return [line[4:].decode() for line in text.splitlines() if line.startswith(b"id: ")]


async def everything(client: EventClient) -> bytes:
    """What a client is sent until its stream ends."""
    try:
        return b"".join([chunk async for chunk in client.stream])
    finally:
        await client.close()


async def test_one_reader_of_redis_serves_all_clients_of_a_run(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        await it.write(3)
        clients = [asyncio.create_task(everything(it.feeds.open(RUN, "0"))) for _ in range(50)]
        for _ in range(5):
            await it.up_to_date()
            assert it.store.n_blocked() == 1
            await it.write(2)
        await it.end()
        for client in clients:
            assert numbers(await client) == list(range(1, 14))
    assert it.feeds.n_clients == 0
    assert it.store.n_blocked() == 0


@pytest.mark.parametrize("window", [1, 2000, 2**20])
async def test_clients_that_join_anywhere_get_every_later_event_once(
    tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "WINDOW_BYTES", window)
    async with stage(tmp_path) as it:
        await it.write(200)
        await it.end()
        whole = await everything(it.feeds.open(RUN, "0"))
        assert numbers(whole) == list(range(1, 201))
        joined = [0, 1, 63, 64, 65, 150, 199]
        later = [it.feeds.open(RUN, ids(whole)[at]) for at in reversed(joined)]
        texts = await asyncio.gather(*map(everything, later))
        for at, text in zip(reversed(joined), texts, strict=True):
            assert ids(text) == ids(whole)[at + 1 :]


@pytest.mark.whole
async def test_a_slow_client_is_sent_away_and_comes_back_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "WINDOW_BYTES", 2000)
    async with stage(tmp_path) as it:
        await it.write(1)
        slow, fast = it.feeds.open(RUN, "0"), asyncio.create_task(everything(it.feeds.open(RUN, "0")))
        got = b""
        while numbers(got) != [1]:
            got += await anext(slow.stream)
        waiting = asyncio.ensure_future(anext(slow.stream))
        await it.up_to_date()
        await it.write(1)
        got += await waiting
        assert numbers(got) == [1, 2]
        for _ in range(60):  # which it does not read
            await it.write(1)
            await it.up_to_date()
        assert [chunk async for chunk in slow.stream] == []
        await slow.close()
        assert it.feeds._feeds[RUN]._n_bytes <= 2000
        again = asyncio.create_task(everything(it.feeds.open(RUN, ids(got)[-1])))
        await it.end()
        assert numbers(got + await again) == numbers(await fast) == list(range(1, 63))


async def test_an_id_that_does_not_exist_yet_hides_no_event_from_others(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        await it.write(2)
        first = asyncio.create_task(everything(it.feeds.open(RUN, "99999999999999999")))
        await it.up_to_date()
        second = asyncio.create_task(everything(it.feeds.open(RUN, "0")))
        await it.write(2)
        await it.end()
        assert numbers(await first) == []
        assert numbers(await second) == [1, 2, 3, 4]


async def test_a_quiet_stream_is_kept_open_by_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "BEAT_S", 0.01)
    async with stage(tmp_path) as it:
        client = it.feeds.open(RUN, "0")
        assert ids(await anext(client.stream))
        assert await anext(client.stream) == event_feed.BEAT
        await client.close()


async def test_the_number_of_clients_is_bounded(tmp_path: Path) -> None:
    async with stage(tmp_path, max_clients=2) as it:
        one, two = it.feeds.open(RUN, "0"), it.feeds.open(RUN, "0")
        with pytest.raises(Busy, match="CLOUD_MAX_EVENT_CLIENTS"):
            it.feeds.open(RUN, "0")
        await one.close()  # it never began
        three = it.feeds.open(RUN, "0")
        await two.close()
        await three.close()
    assert it.feeds.n_clients == 0


@pytest.mark.whole
@pytest.mark.layout(cloud={"max_event_clients": 1})
async def test_too_many_clients_are_told_when_to_come_back(fed: Federation) -> None:
    gate, run_id = await fed.submit_and_hold(small_spec())
    path = f"/runs/{run_id}/events"
    async with opened(fed.apps["cloud"], path) as stream:
        await anext(stream.events())
        refused = await fed.client.get(path)
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        assert int(refused.headers["retry-after"]) > 0
    async with opened(fed.apps["cloud"], path) as stream:
        await anext(stream.events())
        gate.open.set()
        await fed.finish(run_id)
    assert (await fed.client.get(path)).status_code == 200
    assert fed.cloud.events.n_clients == 0


async def test_a_stream_ends_when_its_run_is_deleted(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        await it.write(1)
        client = asyncio.create_task(everything(it.feeds.open(RUN, "0")))
        await it.up_to_date()
        await it.repository.delete(RUN)
        await it.write(1)
        assert ids(await client), "what was stored before"
    assert it.feeds.n_clients == 0
