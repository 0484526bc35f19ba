"""The one thread of a process that computes: decoding, adding up, training, evaluation."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


# ---- the worker thread


class Worker:
    """The one thread of a process that computes; torch runs single-threaded in it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Run a function there; works queue in the order of asking."""
        context = contextvars.copy_context()  # ids for what it logs
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: context.run(work, *args))

    def close(self) -> None:
        """Let the present work end, drop what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def pin_threads() -> None:
    """One thread for torch: thread counts change bits. The libraries' variables are set before torch is imported."""
    import torch

    torch.set_num_threads(1)
