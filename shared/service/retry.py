"""Retries with capped back-off and jitter, up to a deadline in wall time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.core.errors import DeadlineExceeded, StrataError

T = TypeVar("T")
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds after each failed attempt; the last holds for all further ones."""
STORE_S = 60.0
"""Seconds for which a round at an edge waits for a Redis that does not answer."""
_JITTER = random.SystemRandom()
"""The system's: how often a process draws from its global generator must not depend on late answers."""


def backoff(attempt: int) -> float:
    """Returns the seconds before the next attempt, with jitter so that many callers do not return at once."""
    return BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)] * _JITTER.uniform(0.7, 1.3)


def pause_s(every_s: float, failures: int) -> float:
    """Returns the seconds until the next heartbeat: more after failures, but at most five times the usual interval."""
    return min(max(backoff(failures), every_s), 5 * every_s) if failures else every_s


async def retry(
    attempt: Callable[[float], Awaitable[T]], *, limit_s: float, peer: str, over: tuple[type[Exception], ...]
) -> T:
    """Returns the result of the first attempt that succeeds.

    Args:
        attempt: makes one attempt; its argument is the seconds that are left, after which it is cancelled.
        limit_s: wall seconds for all attempts together.
        peer: names the other side in the error.
        over: errors after which another attempt is made; any other is raised at once.

    Raises:
        DeadlineExceeded: no attempt succeeded in time; the message says how the last one failed.
    """
    clock = asyncio.get_running_loop().time
    ends = clock() + limit_s
    last = "no answer"
    for tries in itertools.count():
        left = ends - clock()
        if left <= 0:
            break
        try:
            async with asyncio.timeout(left):
                return await attempt(left)
        except TimeoutError:
            break
        except over as error:
            last = error.detail if isinstance(error, StrataError) else f"{type(error).__name__}: {error}".rstrip(": ")
        await asyncio.sleep(min(backoff(tries), max(ends - clock(), 0)))
    raise DeadlineExceeded(f"{peer} did not answer within {limit_s:g} s ({last})")
