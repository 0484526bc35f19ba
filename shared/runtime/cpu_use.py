"""How much CPU the container of this process may use, and how much of it is taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from shared.core.bounds import Amount
from shared.core.records import Record
from shared.runtime.host_limits import cpu_quota, cpu_used_s

LOOK_S = 0.5
"""Seconds between two measurements; who asks sooner gets the last one."""


class CpuUse(Record):
    """The CPUs of a container with a limit, as one of its processes measures them.

    Attributes:
        limit: CPUs that it may use: CPU seconds a second.
        used: CPUs that all its processes used lately.
        own: CPUs that the measuring process used of these.
    """

    limit: Annotated[float, Field(gt=0, le=1e6)]
    used: Amount = 0.0
    own: Amount = 0.0

    @property
    def free_share(self) -> float:
        """The share of one CPU that a thread of this process may get, 0 to 1."""
        return min(max(self.limit - max(self.used - self.own, 0.0), 0.0), 1.0)


class CpuMeter:
    """Measures the CPUs of this process' container between two looks.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at, self._used, self._own = clock(), cpu_used_s() or 0.0, time.process_time()
        self._last = self._measured(0.0, 0.0)

    def look(self) -> CpuUse | None:
        """The use since the look before; None where the container, or the machine, sets no limit."""
        now = self._clock()
        if self._last is None or now - self._at < LOOK_S:
            return self._last
        used, own, took = cpu_used_s() or 0.0, time.process_time(), now - self._at
        self._last = self._measured((used - self._used) / took, (own - self._own) / took)
        self._at, self._used, self._own = now, used, own
        return self._last

    @staticmethod
    def _measured(used: float, own: float) -> CpuUse | None:
        limit = cpu_quota()
        return None if limit is None else CpuUse(limit=limit, used=max(used, 0.0), own=max(own, 0.0))
