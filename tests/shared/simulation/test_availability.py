"""Availability of devices: fractions, instants, trace files."""

from __future__ import annotations

import math
from itertools import pairwise, takewhile

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from shared.simulation import Always, Availability, OnOff, Trace, is_on, next_on, parse_traces
from shared.simulation.availability import CYCLES, _on_times
from tests.shared.simulation.test_load import streams_of

TIMES = OnOff(mean_on_s=30, mean_off_s=70)


def on(availability: Availability, at_s: float, seat: int = 0) -> bool:
    return is_on(availability, seat, at_s, streams_of(seat))


def test_always_available_means_at_every_instant() -> None:
    assert on(Always(), 0)
    assert next_on(Always(), 3, 1e9, streams_of(3)) == 1e9


# ---- exponential times


def times_of(seat: int) -> tuple[list[float], list[float]]:
    """Returns a seat's on-times and off-times in the first stretch, without the first and the last on-time."""
    found = list(takewhile(lambda interval: interval[1] < 100 * CYCLES, _on_times(TIMES, 0, streams_of(seat))))[1:]
    return [end - begin for begin, end in found], [b[0] - a[1] for a, b in pairwise(found)]


@pytest.mark.parametrize("at_s", [0.0, 50.0, 100 * CYCLES - 1e-9, 100.0 * CYCLES, 1e7])
def test_the_share_of_available_devices_follows_from_the_means(at_s: float) -> None:
    n = sum(on(TIMES, at_s, seat) for seat in range(600))
    low, high = stats.binom(600, 0.3).interval(0.999)
    assert low <= n <= high


def test_a_device_is_available_for_its_share_of_the_time() -> None:
    at = [on(TIMES, 40.0 * step, seat) for seat in range(10) for step in range(500)]
    assert np.mean(at) == pytest.approx(0.3, abs=0.03)


def test_the_times_are_exponential_with_their_means() -> None:
    found = [times_of(seat) for seat in range(30)]
    for index, mean in enumerate((30, 70)):
        lengths = [length for times in found for length in times[index]]
        assert len(lengths) > 1_500
        assert stats.kstest(lengths, stats.expon(scale=mean).cdf).pvalue > 1e-3


def test_seats_have_different_and_repeatable_availability() -> None:
    instants = [100.0 * step for step in range(300)]
    one, again, other = [[on(TIMES, at, seat) for at in instants] for seat in (1, 1, 2)]
    assert one == again
    assert 0.3 < np.mean(np.array(one) == np.array(other)) < 0.8


def test_an_unavailable_device_returns_at_its_first_available_instant() -> None:
    at = 1234.5
    off = [seat for seat in range(20) if not on(TIMES, at, seat)]
    assert len(off) > 5
    for seat in off:
        first = next_on(TIMES, seat, at, streams_of(seat))
        assert first is not None
        assert on(TIMES, first, seat)
        assert not any(on(TIMES, instant, seat) for instant in np.linspace(at, first, 50, endpoint=False))


# ---- traces


def test_intervals_shorter_than_the_rounding_of_a_late_instant_come_to_an_end() -> None:
    """An instant is as late as reports make it: up to 1e18 seconds, which floats tell apart by 128."""
    short = OnOff(mean_on_s=0.5, mean_off_s=0.5)
    length = CYCLES * 1.0
    assert math.ulp(1e18) > length
    for at_s in (1e16, 1e17, 1e18):
        back_s = next_on(short, 0, at_s, streams_of(0))
        assert back_s is None or back_s >= at_s


def test_a_trace_interval_includes_its_start_and_excludes_its_end() -> None:
    trace = Trace(traces=(((10, 20), (30, 40)),))
    assert [at for at in range(0, 50, 5) if on(trace, at)] == [10, 15, 30, 35]
    assert next_on(trace, 0, 20, streams_of(0)) == 30
    assert next_on(trace, 0, 40, streams_of(0)) is None


def test_a_trace_with_a_period_repeats() -> None:
    trace = Trace(traces=(((10, 20),),), period_s=50)
    assert [at for at in range(0, 200, 5) if on(trace, at)] == [10, 15, 60, 65, 110, 115, 160, 165]
    assert next_on(trace, 0, 170, streams_of(0)) == 210


def test_seats_follow_the_traces_in_turn() -> None:
    trace = Trace(traces=(((0, 10),), ((10, 20),), ()))
    found = [[on(trace, at, seat) for at in (5, 15)] for seat in range(4)]
    assert found == [[True, False], [False, True], [False, False], [True, False]]


def test_intervals_are_short_for_a_single_trace() -> None:
    assert Trace.model_validate({"intervals": [[0, 1], [2, 3]]}) == Trace(traces=(((0, 1), (2, 3)),))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"intervals": [[5, 5]]}, r"trace 0: \[5, 5\] is not an interval"),
        ({"intervals": [[-1, 5]]}, "is not an interval"),
        ({"intervals": [[0, 5], [4, 6]]}, r"\[4, 6\] begins before the interval before it ends"),
        ({"traces": [[], [[0, 9]]], "period_s": 8}, r"trace 1: \[0, 9\] lies beyond period_s 8"),
        ({"traces": []}, "at least 1"),
        ({"file": "x"}, "only `strata run SPEC` reads a trace file"),
        ({"traces": [[[n, n + 0.5] for n in range(6_000)]] * 2}, "more than 10000 intervals together"),
    ],
)
def test_invalid_traces_are_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Trace.model_validate(raw)


def test_a_trace_file_has_one_interval_per_line() -> None:
    text = "# trace from to\n0 0 3600\n\n1 100 5e3  # at work\n0 7200 9000\n"
    assert parse_traces(text) == [[(0, 3600), (7200, 9000)], [(100, 5000)]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file has no interval"),
        ("0 1\n", "line 1 reads '0 1', not `TRACE FROM TO`"),
        ("0 0 1\nx 2 3\n", "line 2 reads 'x 2 3'"),
        ("0 0 1\n2 0 1\n", "there is no trace 1"),
        ("-1 0 1\n", "there is no trace 0"),
        ("0 3 2\n", r"trace 0: \[3, 2\] is not an interval"),
        ("0 nan 2\n", "is not an interval"),
        ("0 1 inf\n", "is not an interval"),
        ("0 5 6\n0 0 1\n", "begins before"),
    ],
)
def test_a_wrong_line_of_a_trace_file_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_traces(text)
