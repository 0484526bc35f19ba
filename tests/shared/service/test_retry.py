"""The pauses between attempts and between heartbeats."""

from __future__ import annotations

from shared.service.retry import pause_s


def test_heartbeats_slow_down_after_failures_to_five_times_their_interval_at_most() -> None:
    assert pause_s(0.3, 0) == 0.3
    pauses = [pause_s(0.3, failures) for failures in range(1, 50)]
    assert min(pauses) >= 0.3
    assert max(pauses) == 5 * 0.3
    assert 3.5 <= pause_s(2.0, 49) <= 6.5  # the longest pause between attempts, 5 s, with its jitter
