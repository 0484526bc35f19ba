"""What late and inexact telemetry costs, on fewer rounds than docs/telemetry-results.md has."""

from __future__ import annotations

from benchmarks.telemetry import longer, messages, off_plan_s, result


def test_rounds_are_longer_the_less_twins_know_and_longest_with_equal_shares() -> None:
    fresh, stale = messages(1, 0.0, "kalman"), messages(60, 0.4, "last")
    exact, knows, guesses, equal = (
        result(twins, schedule, rounds=6, seeds=(1, 2))
        for twins, schedule in ((True, "finish_time"), (fresh, "finish_time"), (stale, "finish_time"), (True, "equal"))
    )
    one, other, most = (sum(longer(found, exact)) / 2 for found in (knows, guesses, equal))
    assert 0 < one < other < most
    assert off_plan_s(exact) < off_plan_s(knows) < off_plan_s(guesses)
