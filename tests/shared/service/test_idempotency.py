"""The work of an order runs once, however often the order is sent. All times are simulated."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from shared.core.errors import Cancelled, WireError
from shared.service.idempotency import GRACE_S, KEEP_S, IdempotentRunner
from tests.fakes.simulated_time import in_simulated_time

TICK_S = 0.01


class Job:
    """Work that the test ends; it counts its starts and keeps its stop events."""

    def __init__(self) -> None:
        self.stops: list[threading.Event] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, stop: threading.Event) -> str:
        self.stops.append(stop)
        number = len(self.stops)
        while not self.gate.is_set():
            if stop.is_set():
                raise Cancelled("told to stop")
            await asyncio.sleep(TICK_S)
        if self.error:
            raise self.error
        return f"answer {number}"


class Caller:
    """A request whose connection the test breaks."""

    gone = False

    async def is_disconnected(self) -> bool:
        return self.gone


@pytest.fixture
def runner() -> IdempotentRunner[str]:
    return IdempotentRunner()


def ask(runner: IdempotentRunner[str], job: Job, key: int = 1, digest: str = "a", **more: Any) -> asyncio.Task[str]:
    return asyncio.create_task(runner.answer(more.get("queue", "queue"), key, digest, job, more.get("caller")))


async def left(runner: IdempotentRunner[str], job: Job) -> None:
    """A caller asks, and goes away while the work runs."""
    caller, n = Caller(), len(job.stops)
    answer = ask(runner, job, caller=caller)
    if not n:
        await started(job)
    caller.gone = True
    with pytest.raises(Cancelled, match="went away"):
        await answer


async def started(job: Job, n: int = 1) -> None:
    while len(job.stops) < n:  # noqa: ASYNC110 - waits for a count
        await asyncio.sleep(TICK_S)


@in_simulated_time
async def test_an_order_whose_answer_is_not_kept_is_new_work_once_it_is_answered() -> None:
    runner, job = IdempotentRunner[str](keep=lambda answer: answer != "answer 1"), Job()
    asked = [ask(runner, job) for _ in range(2)]
    await started(job)
    job.gate.set()
    assert await asyncio.gather(*asked) == ["answer 1"] * 2
    assert [await ask(runner, job) for _ in range(2)] == ["answer 2"] * 2


@in_simulated_time
async def test_a_repeated_order_waits_for_the_running_work_or_gets_its_answer(runner: IdempotentRunner[str]) -> None:
    job = Job()
    answers = [ask(runner, job) for _ in range(3)]
    await started(job)
    job.gate.set()
    assert await asyncio.gather(*answers, ask(runner, job)) == ["answer 1"] * 4
    assert await ask(runner, job) == "answer 1"
    assert len(job.stops) == 1


@in_simulated_time
async def test_another_body_starts_new_work_and_cancels_the_old(runner: IdempotentRunner[str]) -> None:
    job = Job()
    old = ask(runner, job, digest="a")
    await started(job)
    new = ask(runner, job, digest="b")
    await started(job, 2)
    with pytest.raises(Cancelled, match="told to stop"):
        await old
    job.gate.set()
    assert await new == "answer 2"
    assert [stop.is_set() for stop in job.stops] == [True, False]
    assert await ask(runner, job, digest="b") == "answer 2"


@in_simulated_time
async def test_work_is_stopped_after_the_grace_without_a_caller(runner: IdempotentRunner[str]) -> None:
    job = Job()
    await left(runner, job)
    await asyncio.sleep(0.99 * GRACE_S)
    assert not job.stops[0].is_set()
    await asyncio.sleep(0.02 * GRACE_S)
    assert job.stops[0].is_set()
    job.gate.set()
    assert await ask(runner, job) == "answer 2"


@pytest.mark.parametrize("back_s", [0.0, 0.99 * GRACE_S], ids=["stays", "comes back"])
@in_simulated_time
async def test_a_second_caller_finds_the_work_of_the_first(runner: IdempotentRunner[str], back_s: float) -> None:
    job, caller = Job(), Caller()
    first = ask(runner, job, caller=caller)
    await started(job)
    second = None if back_s else ask(runner, job)
    caller.gone = True
    with pytest.raises(Cancelled):
        await first
    await asyncio.sleep(back_s)
    second = second or ask(runner, job)
    await asyncio.sleep(2 * GRACE_S)  # the first absence's grace period is over, but a caller waits
    assert not job.stops[0].is_set()
    job.gate.set()
    assert await second == "answer 1"


@in_simulated_time
async def test_a_second_absence_has_the_full_grace_period_again(runner: IdempotentRunner[str]) -> None:
    job = Job()
    await left(runner, job)
    await asyncio.sleep(0.5 * GRACE_S)
    await left(runner, job)
    await asyncio.sleep(0.7 * GRACE_S)  # 1.2 grace periods after the first absence
    assert not job.stops[0].is_set()


@in_simulated_time
async def test_an_answer_that_finishes_without_a_caller_is_kept(runner: IdempotentRunner[str]) -> None:
    job = Job()
    await left(runner, job)
    job.gate.set()
    await asyncio.sleep(2 * GRACE_S)  # done within the grace period, which then ends
    assert await ask(runner, job) == "answer 1"
    assert len(job.stops) == 1


@in_simulated_time
async def test_errors_reach_all_callers_and_are_not_remembered(runner: IdempotentRunner[str]) -> None:
    alone, job = Job(), Job()
    alone.error = job.error = WireError("bad")
    await left(runner, alone)
    alone.gate.set()
    await asyncio.sleep(GRACE_S)
    alone.error = None
    assert await ask(runner, alone) == "answer 2", "nor is one without a caller"
    answers = [ask(runner, job, key=2), ask(runner, job, key=2)]
    await started(job)
    job.gate.set()
    for task in answers:
        with pytest.raises(WireError, match="bad"):
            await task
    job.error = None
    assert await ask(runner, job, key=2) == "answer 2"


@in_simulated_time
async def test_answers_are_dropped_when_their_queue_continues(runner: IdempotentRunner[str]) -> None:
    job = Job()
    job.gate.set()
    asked = [(1, "queue"), (2, "queue"), (1, "queue"), (1, "other queue")]
    answers = [await ask(runner, job, key=key, queue=queue) for key, queue in (*asked, asked[0])]
    assert answers == ["answer 1", "answer 2", "answer 3", "answer 4", "answer 3"]


@in_simulated_time
async def test_answers_nobody_asks_for_any_more_are_dropped_and_work_that_runs_is_not() -> None:
    now = 0.0
    runner = IdempotentRunner[str](clock=lambda: now)
    job, busy = Job(), Job()
    job.gate.set()
    assert await ask(runner, job) == "answer 1"
    running = ask(runner, busy, queue="other queue")
    await started(busy)
    now = KEEP_S
    runner.drop_idle()
    assert await ask(runner, job) == "answer 1"
    now = KEEP_S + 1
    runner.drop_idle()
    assert await ask(runner, job) == "answer 2"
    busy.gate.set()
    assert await running == "answer 1"


@in_simulated_time
async def test_a_dropped_queue_is_forgotten_and_its_work_stopped(runner: IdempotentRunner[str]) -> None:
    job = Job()
    answer = ask(runner, job)
    await started(job)
    runner.drop_unless(lambda queue: queue == "queue")
    assert not job.stops[0].is_set()
    runner.drop("queue")
    with pytest.raises(Cancelled):
        await answer
    job.gate.set()
    assert await ask(runner, job) == "answer 2"


@in_simulated_time
async def test_closing_cancels_all_work_including_replaced_work(runner: IdempotentRunner[str]) -> None:
    job = Job()
    answers = [ask(runner, job, digest="a")]
    await started(job)
    answers.append(ask(runner, job, digest="b"))
    await started(job, 2)
    await runner.close()
    assert all(stop.is_set() for stop in job.stops)
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(error) for error in found] == [Cancelled, Cancelled]
