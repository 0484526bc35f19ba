"""The pauses between attempts and between heartbeats."""

from __future__ import annotations

import random

from shared.service.retry import backoff, pause_s


def test_heartbeats_slow_down_after_failures_to_five_times_their_interval_at_most() -> None:
    assert pause_s(0.3, 0) == 0.3
    pauses = [pause_s(0.3, failures) for failures in range(1, 50)]
    assert min(pauses) >= 0.3
    assert max(pauses) == 5 * 0.3
    assert 3.5 <= pause_s(2.0, 49) <= 6.5  # the longest pause between attempts, 5 s, with its jitter


def test_jitter_is_independent_of_the_global_generator() -> None:
    pauses = []
    for _ in range(2):
        random.seed(7)
        before = random.getstate()
        pauses.append([backoff(n) for n in range(9)])
        assert random.getstate() == before
    assert pauses[0] != pauses[1]
