"""The compute thread of a process: decoding, aggregation, training, evaluation."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class ComputeThread:
    """The compute thread of a process; torch runs single-threaded in it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Runs a function in the thread and returns its result; functions run in the order of the calls."""
        context = contextvars.copy_context()  # the ids of log lines
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: context.run(work, *args))

    def close(self) -> None:
        """Waits for the running function and drops those that wait."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def pin_threads() -> None:
    """Lets torch use one thread: the number of threads changes bits. (Variables of its libraries are set earlier.)"""
    import torch

    torch.set_num_threads(1)
