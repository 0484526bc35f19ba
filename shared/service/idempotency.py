"""Work that is done once, however often it is asked for.

A tier's POST is known by its place in the run (run, round, edge round, wave, edge) and the digest of its body. Asked
again with the same digest, the same bytes come back, also while the work still runs. Another digest at the same
place is new work (a round retried on a new map) and ends the old. Work that nobody waits for any more is told so.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request

from shared.core.errors import Cancelled

T = TypeVar("T")
GRACE_S = 10.0
POLL_S = 0.5


@dataclass
class _Running(Generic[T]):
    digest: str
    task: asyncio.Task[T]
    stop: threading.Event
    waiters: int = 0
    ending: asyncio.TimerHandle | None = None


class IdempotentRunner(Generic[T]):
    """The answers of a tier, the newest for each line of work."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.grace_s = grace_s
        self._work: dict[Hashable, dict[Hashable, _Running[T]]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def answer(
        self,
        line: Hashable,
        place: Hashable,
        digest: str,
        work: Callable[[threading.Event], Awaitable[T]],
        request: Request | None = None,
        *,
        grace_s: float | None = None,
    ) -> T:
        """The answer to one order.

        Args:
            line: whose orders follow each other (run and edge, say); a new place drops the line's older answers.
            place: which order of the line.
            digest: of the order's bytes.
            work: starts the work; given an event that is set when nobody waits any more.
            request: its connection is watched.
            grace_s: how long work goes on that nobody waits for; by default as long as all here.

        Raises:
            Cancelled: the caller went away, or other work took this place.
        """
        running = self._find(line, place, digest) or self._start(line, place, digest, work)
        running.waiters += 1
        if running.ending is not None:
            running.ending.cancel()
        try:
            while not running.task.done():
                await asyncio.wait({running.task}, timeout=POLL_S)
                if request is not None and not running.task.done() and await request.is_disconnected():
                    raise Cancelled("the caller went away")
        finally:
            running.waiters -= 1
            if not running.waiters and not running.task.done():
                running.ending = asyncio.get_running_loop().call_later(
                    self.grace_s if grace_s is None else grace_s, self._end_if_alone, running
                )
        if running.task.cancelled():
            raise Cancelled("other work took the place of this order")
        if running.task.exception() is not None:
            self._forget(line, place, running)
        return running.task.result()

    def _find(self, line: Hashable, place: Hashable, digest: str) -> _Running[T] | None:
        found = self._work.get(line, {}).get(place)
        if found is None or (found.task.done() and _went_wrong(found.task)):
            return None
        if found.digest != digest:
            found.stop.set()
            return None
        return None if found.stop.is_set() else found

    def _start(
        self, line: Hashable, place: Hashable, digest: str, work: Callable[[threading.Event], Awaitable[T]]
    ) -> _Running[T]:
        stop = threading.Event()

        async def run() -> T:
            return await work(stop)

        running = _Running(digest, asyncio.create_task(run()), stop)
        self._tasks.add(running.task)
        running.task.add_done_callback(self._ended)
        finished = {key for key, old in self._work.get(line, {}).items() if old.task.done()}
        kept = {key: old for key, old in self._work.get(line, {}).items() if key not in finished}
        self._work[line] = {**kept, place: running}
        return running

    def _forget(self, line: Hashable, place: Hashable, running: _Running[T]) -> None:
        if self._work.get(line, {}).get(place) is running:
            del self._work[line][place]

    def _end_if_alone(self, running: _Running[T]) -> None:
        if not running.waiters and not running.task.done():
            running.stop.set()

    def _ended(self, task: asyncio.Task[T]) -> None:
        """Let go of a task; the error of one that nobody waits for is no news."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def drop(self, line: Hashable) -> None:
        """Forget a line of work, and end what still runs of it."""
        for running in self._work.pop(line, {}).values():
            running.stop.set()

    def drop_unless(self, belongs: Callable[[Any], bool]) -> None:
        """Forget the lines that do not belong, and end what still runs of them."""
        for line in [line for line in self._work if not belongs(line)]:
            self.drop(line)

    async def close(self) -> None:
        """End everything and wait for it, also for what had been dropped."""
        for line in list(self._work):
            self.drop(line)
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _went_wrong(task: asyncio.Task[Any]) -> bool:
    """Whether finished work has no answer to give."""
    return task.cancelled() or task.exception() is not None
