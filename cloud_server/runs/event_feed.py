"""Events of a run for many clients: one reader of Redis for each run, whose events all clients of that run share.

A client first gets the events that were stored before, page by page, at its own pace. From then on it is served from
memory, where the newest events stand, each encoded once. A client that reads too slowly falls out of that window; its
stream ends, and it comes back with the id of the last event that it got.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from cloud_server.runs.repository import RunRepository
from shared.core.errors import Busy, StrataError
from shared.run_records.events import Event
from shared.run_records.runs import FINAL
from shared.storage import redis_keys
from shared.storage.key_value.store import parse_entry_id

log = logging.getLogger(__name__)
T = TypeVar("T")
EntryId = tuple[int, int]
BEAT_S = 10.0
"""Wall seconds without an event after which clients are sent a comment, to keep the connection open."""
BEAT = b": still here\n\n"
SPACING_S = 0.002
"""Wall seconds between two sends of a run's events, for each of its clients.

What happens meanwhile is sent together. A send takes 25 to 75 microseconds, so all of them take a few hundredths of a
CPU, however fast the rounds are; with 1,000 clients events arrive up to two seconds late.
"""
WINDOW_BYTES = 2**20
"""Size of the newest encoded events that are kept for a run's clients."""
SENT_TOGETHER = 64
"""Most events of one send: what waits for a client that does not read is bounded."""


def encode(event: Event) -> bytes:
    """An event as a message of a stream of server-sent events."""
    return f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode()


class EventFeeds:
    """The clients of the events of all runs.

    Args:
        repository: of the runs.
        closing: set when the cloud shuts down; ends all streams.
        max_clients: at a time; more are refused.
    """

    def __init__(self, repository: RunRepository, closing: asyncio.Event, max_clients: int) -> None:
        self.repository, self.closing, self.max_clients = repository, closing, max_clients
        self.n_clients = 0
        self._feeds: dict[str, EventFeed] = {}

    def open(self, run_id: str, after: str) -> EventClient:
        """A client of a run's events after an id. It must be closed.

        Raises:
            Busy: as many clients are connected as the setting allows.
        """
        if self.n_clients >= self.max_clients:
            raise Busy(f"{self.max_clients} clients read events (CLOUD_MAX_EVENT_CLIENTS)")
        feed = self._feeds.get(run_id)
        if feed is None or feed.ended:
            feed = self._feeds[run_id] = EventFeed(self.repository, run_id, after, self.closing)
        self.n_clients += 1
        feed.n_clients += 1
        return EventClient(self, feed, after)

    def leave(self, feed: EventFeed) -> None:
        """Take a client off a feed; nobody reads Redis for a run without clients."""
        self.n_clients -= 1
        feed.n_clients -= 1
        if not feed.n_clients:
            feed.stop()
            if self._feeds.get(feed.run_id) is feed:
                del self._feeds[feed.run_id]


class EventClient:
    """One client: its stream, and that it counts as connected until it is closed."""

    def __init__(self, feeds: EventFeeds, feed: EventFeed, after: str) -> None:
        self.stream = feed.follow(after)
        self._feeds, self._feed = feeds, feed

    async def close(self) -> None:
        """End the stream."""
        self._feeds.leave(self._feed)
        await self.stream.aclose()


class EventFeed:
    """The newest events of a run, and the task that reads them.

    Attributes:
        ended: whether no further event will be read.
        n_clients: number of clients.

    Args:
        repository: of the runs.
        run_id: the run.
        after: id after which the first client wants events; all later ones are kept, up to `WINDOW_BYTES`.
        closing: set when the cloud shuts down.
    """

    def __init__(self, repository: RunRepository, run_id: str, after: str, closing: asyncio.Event) -> None:
        self.run_id, self.ended, self.n_clients = run_id, False, 0
        self._repository, self._closing = repository, closing
        self._before: EntryId | None = None  # id after which events are in the window; None until it is known
        self._begun_at: EntryId = (0, 0)  # id of the newest event when the feed began
        self._ids: list[EntryId] = []
        self._texts: list[bytes] = []
        self._n_bytes = self._n_beats = 0
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(after))

    def stop(self) -> None:
        """Stop reading."""
        self._task.cancel()

    # ---- the reader

    async def _read(self, after: str) -> None:
        """Reads events until the run has ended and all were read, or the cloud shuts down."""
        try:
            newest = await self._repository.store.last_id(redis_keys.cloud_events(self.run_id))
            after = min(after, newest, key=parse_entry_id)  # a client may name an id that does not exist yet
            self._before, self._begun_at = parse_entry_id(after), parse_entry_id(newest)
            self._wake()
            while not self._closing.is_set():
                ended = (await self._repository.info(self.run_id)).status in FINAL
                events = self._repository.events(self.run_id, after, 0.0 if ended else BEAT_S)
                found = await self._unless_closing(events) or []
                if ended and not found:
                    return
                after = found[-1].id if found else after
                self._n_beats += not found
                self._add(found)
                await self._unless_closing(asyncio.sleep(SPACING_S * self.n_clients))
        except StrataError as error:
            log.warning("events of run %s broke off: %s", self.run_id, error.detail)
        finally:
            self.ended = True
            self._wake()

    async def _unless_closing(self, awaited: Coroutine[Any, Any, T]) -> T | None:
        """What is awaited; None at once when the cloud shuts down."""
        closing, task = asyncio.create_task(self._closing.wait()), asyncio.create_task(awaited)
        try:
            await asyncio.wait({closing, task}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (closing, task):
                each.cancel()
            await asyncio.gather(closing, task, return_exceptions=True)

    def _add(self, events: list[Event]) -> None:
        self._ids += [parse_entry_id(event.id) for event in events]
        texts = [encode(event) for event in events]
        self._texts += texts
        self._n_bytes += sum(map(len, texts))
        n_old = 0
        while self._n_bytes > WINDOW_BYTES and n_old < len(self._ids) - 1:
            self._n_bytes -= len(self._texts[n_old])
            self._before = self._ids[n_old]
            n_old += 1
        del self._ids[:n_old], self._texts[:n_old]
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # ---- the clients

    async def follow(self, after: str) -> AsyncGenerator[bytes, None]:
        """The events after an id, as they come; the stream ends with the run, or if its reader is too slow.

        Only a client that was up to date once can be too slow; before that it reads what was stored.
        """
        at, was_up_to_date = parse_entry_id(after), False
        while not self._closing.is_set():
            news, n_beats = self._news, self._n_beats
            first = bisect_right(self._ids, at)
            if self._before is not None and at < self._before:
                if was_up_to_date:
                    log.info("a client of the events of run %s reads too slowly", self.run_id)
                    return
                older = await self._stored(at)
                if not older:
                    return
                at = parse_entry_id(older[-1].id)
                yield b"".join(map(encode, older))
            elif first < len(self._ids):
                ids, texts = self._ids[first : first + SENT_TOGETHER], self._texts[first : first + SENT_TOGETHER]
                at = ids[-1]
                yield b"".join(texts)
            elif self.ended:
                return
            else:
                was_up_to_date = was_up_to_date or (self._before is not None and at >= self._begun_at)
                await news.wait()
                if self._n_beats > n_beats:
                    yield BEAT

    async def _stored(self, at: EntryId) -> list[Event]:
        """The stored events after an id; none if Redis does not answer or the run was deleted."""
        try:
            return await self._repository.events(self.run_id, "{}-{}".format(*at), None, SENT_TOGETHER)
        except StrataError as error:
            log.warning("events of run %s broke off: %s", self.run_id, error.detail)
            return []
