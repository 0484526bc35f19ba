"""Seconds for which this process could run: a suspended machine, or a stopped process, does not see others fall silent.

Who sleeps hears nobody; counted by the monotonic clock, all nodes would be lost when it wakes up.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class AwakeClock:
    """Monotonic seconds without those in which nobody could ask this clock.

    It must be asked often: a longer pause between two questions counts as `most_s`.

    Args:
        most_s: longest pause that counts in full.
        clock: monotonic seconds.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_s, self.clock = most_s, clock
        self._asked_at, self._slept_s = clock(), 0.0

    def __call__(self) -> float:
        """Returns the seconds."""
        now = self.clock()
        self._slept_s += max(now - self._asked_at - self.most_s, 0.0)
        self._asked_at = now
        return now - self._slept_s


def awake(ttl_s: float, clock: Callable[[], float] = time.monotonic) -> Callable[[], float]:
    """Returns the clock by which others' silence is measured; a clock of a test stays as it is.

    Monitors ask it once a second or more often, which is far below half of any TTL in use.
    """
    return AwakeClock(ttl_s / 2) if clock is time.monotonic else clock
