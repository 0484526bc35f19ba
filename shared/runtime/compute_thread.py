"""The compute thread of a process: decoding, aggregation, training, evaluation."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from shared.core.errors import UserCodeFailed
from shared.core.process_settings import settings_kept
from shared.core.user_code import described

T = TypeVar("T")


class ComputeThread:
    """The compute thread of a process; torch runs single-threaded in it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Runs a function in the thread and returns its result; functions run in the order of the calls.

        Raises:
            UserCodeFailed: it calls `exit`, or raises another error that an event loop takes for its own: a plug-in's.
        """
        return await _run(self._pool, work, *args)

    def close(self) -> None:
        """Waits for the running function and drops those that wait."""
        self._pool.shutdown(wait=True, cancel_futures=True)


async def run_beside(work: Callable[..., T], *args: Any) -> T:
    """Runs a function as `ComputeThread.run` does, in a further thread: of those at the same time, each in its own."""
    return await _run(None, work, *args)


async def _run(pool: ThreadPoolExecutor | None, work: Callable[..., T], *args: Any) -> T:
    context = contextvars.copy_context()  # the ids of log lines
    found = await asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(_ended, work, *args))
    try:
        if isinstance(found, _Raised):
            raise found.error
        return found
    finally:
        del found  # or the error and this frame would keep each other


class _Raised(NamedTuple):
    """An error as a result: a future would change some, and never end with others."""

    error: Exception


def _ended(work: Callable[..., T], *args: Any) -> T | _Raised:
    with settings_kept():
        try:
            return work(*args)
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                return _Raised(error)
            failed = UserCodeFailed(f"a plug-in failed: {described(error)}")
            failed.__cause__ = error
            return _Raised(failed)


def pin_threads() -> None:
    """Lets torch use one thread: the number of threads changes bits. (Variables of its libraries are set earlier.)"""
    import torch

    torch.set_num_threads(1)
