"""Background tasks: work that a process repeats beside everything else, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from shared.core.errors import StrataError

log = logging.getLogger(__name__)
Pause = Callable[[int, float], float]
"""Seconds before the next turn, given how many turns in a row have failed and how many seconds the last one took."""


async def _wait(wake: asyncio.Event, limit_s: float) -> None:
    """Waits until the event is set, at most `limit_s` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):  # `wait_for` loses a cancellation in the instant in which the event is set
            await wake.wait()


@dataclass
class Repeating:
    """Repeats `work` in a task of its own. A failed turn is logged and does not end the task.

    Of several failures in a row, expected errors (`StrataError`) after the first of their kind are logged at level
    DEBUG only.

    Attributes:
        every_s: seconds between the end of a turn and the next one.
        work: one turn.
        failing: begins the log line of a failed turn.
        clock: measures how long a turn takes, in seconds.
        wait: waits for the event, at most so many seconds.
    """

    every_s: float | Pause
    work: Callable[[], Awaitable[None]]
    failing: str
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[asyncio.Event, float], Awaitable[None]] = _wait
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _stopping: bool = False
    _failed_by: str = ""

    def start(self) -> None:
        """Begins with the first turn, after a stop again."""
        self._stopping = False
        self._task = asyncio.create_task(self._repeat())

    async def stop(self) -> None:
        """Cancels the present turn and waits for its end."""
        self._stopping = True  # a cancellation that `work` loses ends the task after this turn
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Ends the pause: the next turn begins at once, or right after the present one."""
        self._wake.set()

    async def _repeat(self) -> None:
        failures = 0
        while not self._stopping:
            self._wake.clear()
            began = self.clock()
            failures = 0 if await self._turn(failures) else failures + 1
            pause_s = self.every_s(failures, self.clock() - began) if callable(self.every_s) else self.every_s
            await self.wait(self._wake, pause_s)

    async def _turn(self, failures: int) -> bool:
        """Whether the turn succeeded; `failures` turns before it have failed."""
        try:
            await self.work()
        except StrataError as error:
            told = failures and error.code == self._failed_by
            log.log(logging.DEBUG if told else logging.WARNING, "%s: %s", self.failing, error.detail)
            self._failed_by = error.code
            return False
        except Exception:
            log.exception(self.failing)
            return False
        return True
