"""Time in which a process could not run does not count as the silence of others."""

from __future__ import annotations

from shared.runtime.awake import AwakeClock


def test_a_pause_that_is_longer_than_the_longest_counts_as_that() -> None:
    now = [100.0]
    clock = AwakeClock(5.0, lambda: now[0])
    seen = []
    for step in (1.0, 5.0, 40.0, 1.0):
        now[0] += step
        seen.append(clock())
    assert seen == [101.0, 106.0, 111.0, 112.0]
