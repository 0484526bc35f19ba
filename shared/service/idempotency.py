"""Idempotent orders: the work of an order runs once, however often the order is sent.

An order is identified by its key (run, round, edge round, wave, edge) and the digest of its body. The same order sent
again gets the same answer, also while the work still runs. Another digest under the same key is new work (a round that
is retried with another placement) and stops the old. Work also stops some seconds after the last connection that waits
for its answer has closed.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import Request

from shared.core.errors import Cancelled

T = TypeVar("T")
GRACE_S = 10.0
"""Seconds for which work goes on after its last caller has gone: the caller may come back."""
KEEP_S = 120.0
"""Seconds for which the newest answer of a queue is kept."""
POLL_S = 0.5
"""Seconds between looks whether a caller is still connected."""


@dataclass
class _Running(Generic[T]):
    digest: str
    task: asyncio.Task[T]
    stop: threading.Event
    waiters: int = 0
    ended_at: float = math.inf
    ending: asyncio.TimerHandle | None = None


class IdempotentRunner(Generic[T]):
    """Runs the work of orders, each order once, and keeps the newest answer of each queue.

    Args:
        grace_s: seconds for which work goes on after its last caller has gone.
        clock: seconds on a clock that never goes back.
        keep: whether an answer is kept for the same order; without it, the order is new work.
    """

    def __init__(
        self,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[T], bool] = lambda _: True,
    ) -> None:
        self.grace_s, self.clock, self.keep = grace_s, clock, keep
        self._work: dict[Hashable, dict[Hashable, _Running[T]]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    async def answer(
        self,
        queue: Hashable,
        key: Hashable,
        digest: str,
        work: Callable[[threading.Event], Awaitable[T]],
        request: Request | None = None,
        *,
        grace_s: float | None = None,
    ) -> T:
        """Returns the answer to an order.

        Args:
            queue: the orders that follow one another (those of a run and an edge, say); a new order drops the
                finished answers before it.
            key: of the order, in its queue.
            digest: of the order's body.
            work: does the work; its argument is set when the work is to stop.
            request: its connection; the work waits to be answered as long as it lasts. Without it, as long as the
                caller waits.
            grace_s: seconds for which work goes on without a caller; by default those of this runner.

        Raises:
            Cancelled: the caller went away, or other work took the place of this request.
        """
        running = self._find(queue, key, digest) or self._start(queue, key, digest, work)
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
            raise Cancelled("other work took the place of this request")
        if running.task.exception() is not None or not self.keep(running.task.result()):
            self._forget(queue, key, running)
        return running.task.result()

    def _find(self, queue: Hashable, key: Hashable, digest: str) -> _Running[T] | None:
        found = self._work.get(queue, {}).get(key)
        if found is None or (found.task.done() and _went_wrong(found.task)):
            return None
        if found.digest != digest:
            found.stop.set()
            return None
        return None if found.stop.is_set() else found

    def _start(
        self, queue: Hashable, key: Hashable, digest: str, work: Callable[[threading.Event], Awaitable[T]]
    ) -> _Running[T]:
        stop = threading.Event()

        async def run() -> T:
            return await work(stop)

        running = _Running(digest, asyncio.create_task(run()), stop)
        self._tasks.add(running.task)
        running.task.add_done_callback(partial(self._ended, running))
        unfinished = {other: old for other, old in self._work.get(queue, {}).items() if not old.task.done()}
        self._work[queue] = {**unfinished, key: running}
        return running

    def _forget(self, queue: Hashable, key: Hashable, running: _Running[T]) -> None:
        if self._work.get(queue, {}).get(key) is running:
            del self._work[queue][key]

    def _end_if_alone(self, running: _Running[T]) -> None:
        if not running.waiters and not running.task.done():
            running.stop.set()

    def _ended(self, running: _Running[T], task: asyncio.Task[T]) -> None:
        """Lets go of a task, and reads its error, of which asyncio would else warn."""
        running.ended_at = self.clock()
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def drop(self, queue: Hashable) -> None:
        """Forgets a queue and stops its work."""
        for running in self._work.pop(queue, {}).values():
            running.stop.set()

    def drop_unless(self, belongs: Callable[[Any], bool]) -> None:
        """Forgets all queues for which `belongs` is false and stops their work."""
        for queue in [queue for queue in self._work if not belongs(queue)]:
            self.drop(queue)

    def drop_idle(self) -> None:
        """Forgets the queues whose work ended more than `KEEP_S` seconds ago: nobody asks for those answers again."""
        now = self.clock()
        for queue in [queue for queue, work in self._work.items() if all(_is_old(each, now) for each in work.values())]:
            self.drop(queue)

    async def close(self) -> None:
        """Stops all work and waits until it has ended, also that of queues dropped before."""
        for queue in list(self._work):
            self.drop(queue)
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _is_old(running: _Running[Any], now: float) -> bool:
    return now - running.ended_at > KEEP_S


def _went_wrong(task: asyncio.Task[Any]) -> bool:
    """Whether a finished task was cancelled or failed."""
    return task.cancelled() or task.exception() is not None
