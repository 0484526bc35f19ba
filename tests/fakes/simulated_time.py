"""An event loop with a simulated clock: a test of time limits takes no time, and no load on the machine affects it."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would wait for its next timer, sets the clock to that timer instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Returns what is ready now; waits only if no timer is set."""
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += max(timeout, 0.0)
        return ready


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands while there is work to do, and then jumps to the next timer.

    It does not see the work of other threads: a test that waits for one needs the usual loop.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Returns the simulated seconds since the loop was made."""
        return self._jumping.now


def in_simulated_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an asynchronous test on a `SimulatedTimeLoop`; what is left at its end is cancelled."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
