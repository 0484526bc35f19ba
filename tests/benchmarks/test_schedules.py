"""Schedules compared on the simulated clock, as docs/scheduler-results.md describes them."""

from __future__ import annotations

import pytest

from benchmarks.schedules import CASES, mean_s


@pytest.mark.parametrize(
    ("case", "least", "most"),
    [("compute only", 0.99, 1.0), ("half Wi-Fi, half LTE", 0.5, 0.75)],
)
def test_finish_time_is_faster_where_links_differ_and_equal_where_only_compute_counts(
    case: str, least: float, most: float
) -> None:
    own, papers, ours = (mean_s(CASES[case], name, 1) for name in ("own_data", "free_compute", "finish_time"))
    assert papers < own
    assert least * papers <= ours <= most * papers + 1e-6
