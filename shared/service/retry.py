"""Trying again: capped back-off with jitter, always up to a deadline. Wall time only."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.core.errors import DeadlineExceeded, StrataError

T = TypeVar("T")
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
STORE_S = 60.0
"""How long a round waits at an edge for a Redis that is away."""


def backoff(attempt: int) -> float:
    """Seconds before the next attempt, capped, with jitter so that many callers do not come at once."""
    return BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)] * random.uniform(0.7, 1.3)  # noqa: S311 - no secret


def pause_s(every_s: float, failures: int) -> float:
    """Seconds until the next heartbeat: after failures later, but well within the time after which one is lost."""
    return min(max(backoff(failures), every_s), 5 * every_s) if failures else every_s


async def retry(
    attempt: Callable[[float], Awaitable[T]], *, limit_s: float, who: str, over: tuple[type[Exception], ...]
) -> T:
    """Try again over some errors, with back-off, until it succeeds or the limit has passed.

    Args:
        attempt: one try; given the seconds that are left, after which it is cancelled.
        limit_s: wall seconds for all tries together.
        who: names the callee in the error.
        over: what is tried again; anything else is raised at once.

    Raises:
        DeadlineExceeded: nothing came in time; says how the last try ended.
    """
    ends = time.monotonic() + limit_s
    last = "no answer"
    for tries in itertools.count():
        left = ends - time.monotonic()
        if left <= 0:
            break
        try:
            async with asyncio.timeout(left):
                return await attempt(left)
        except TimeoutError:
            break
        except over as error:
            last = error.detail if isinstance(error, StrataError) else f"{type(error).__name__}: {error}".rstrip(": ")
        await asyncio.sleep(min(backoff(tries), max(ends - time.monotonic(), 0)))
    raise DeadlineExceeded(f"{who} did not answer within {limit_s:g} s ({last})")
