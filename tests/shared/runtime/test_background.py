"""Repeated work: pace, failures, waking and stopping; the tests use a counted clock without waiting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

import pytest

from shared.core.errors import StrataError
from shared.runtime.background import Pause, Repeating


class Turns:
    """Work whose turns end as listed (None, or an error), then never; `pauses` are the requested seconds in between."""

    def __init__(self, *ends: Exception | None) -> None:
        self.ends: Iterator[Exception | None] = iter(ends)
        self.pauses: list[float] = []
        self.over, self.cancelled = asyncio.Event(), False
        self.now_s = 0.0

    async def __call__(self) -> None:
        self.now_s += 2.0  # a turn takes that long
        for end in self.ends:
            if end is not None:
                raise end
            return
        self.over.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def wait(self, wake: asyncio.Event, limit_s: float) -> None:
        self.pauses.append(limit_s)

    async def run(self, every_s: float | Pause) -> None:
        """Runs all turns and then stops."""
        repeating = Repeating(every_s, self, "work waits", clock=lambda: self.now_s, wait=self.wait)
        repeating.start()
        await self.over.wait()
        await repeating.stop()


async def test_turns_follow_each_other_at_the_stated_pace_until_the_task_is_stopped() -> None:
    turns = Turns(None, None)
    await turns.run(5.0)
    assert (turns.pauses, turns.cancelled) == ([5.0, 5.0], True)


async def test_a_task_may_be_stopped_before_its_start_and_started_again() -> None:
    turns = Turns(None)
    repeating = Repeating(0.0, turns, "work waits")
    await repeating.stop()
    assert turns.now_s == 0.0
    repeating.start()
    await repeating.stop()
    repeating.start()
    async with asyncio.timeout(10):
        await turns.over.wait()
        await repeating.stop()
    assert turns.cancelled


async def test_a_pause_may_depend_on_failures_in_a_row_and_on_how_long_the_turn_took() -> None:
    turns = Turns(StrataError("a"), ValueError("b"), None, StrataError("c"))
    await turns.run(lambda failures, took_s: 10 * failures + took_s)
    assert turns.pauses == [12.0, 22.0, 2.0, 12.0]


async def test_a_failed_turn_is_logged_and_the_next_follows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await Turns(StrataError("one"), StrataError("two"), ValueError("bug"), None, StrataError("three")).run(0.0)
    found = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "shared.runtime.background"]
    expected = [("WARNING", "work waits: one"), ("DEBUG", "work waits: two"), ("ERROR", "work waits")]
    assert found == [*expected, ("WARNING", "work waits: three")]


async def test_waking_ends_the_pause_and_a_wake_during_a_turn_is_not_lost() -> None:
    turns: asyncio.Queue[int] = asyncio.Queue()
    n = 0

    async def work() -> None:
        nonlocal n
        n += 1
        turns.put_nowait(n)
        if n == 1:
            repeating.wake()

    repeating = Repeating(1e6, work, "work waits")
    repeating.start()
    assert [await turns.get(), await turns.get()] == [1, 2]
    repeating.wake()
    assert await turns.get() == 3
    await repeating.stop()


@pytest.mark.parametrize("ticks", range(5))
async def test_a_task_that_is_woken_and_stopped_at_once_ends(ticks: int) -> None:
    repeating = Repeating(60.0, Turns(None, None, None), "work waits")
    repeating.start()
    await asyncio.sleep(0.01)
    repeating.wake()
    for _ in range(ticks):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await repeating.stop()


async def test_a_task_whose_work_loses_the_cancellation_ends_with_the_turn() -> None:
    begun, n_turns = asyncio.Event(), 0

    async def deaf() -> None:
        nonlocal n_turns
        n_turns += 1
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    repeating = Repeating(0.0, deaf, "work waits")
    repeating.start()
    await begun.wait()
    async with asyncio.timeout(10):
        await repeating.stop()
    assert n_turns == 1
