"""Availability: at which simulated times a device is on.

A task begins only if its device is on then; a device that goes off later still finishes its task.

A trace file is a text file with one on-interval a line, `TRACE FROM TO`: the trace's number, from 0, and simulated
seconds. The intervals of a trace are in order. Empty lines, and text after `#`, are ignored.

    # trace from to
    0      0  3600
    0   7200  9000
    1    100  5000
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from shared.core.records import Record
from shared.core.validation import check_known
from shared.simulation.distributions import Seeds, uniform01

Interval = tuple[float, float]
Seconds = Annotated[float, Field(ge=1e-3, le=1e12)]
MAX_INTERVALS = 10_000
"""At most this many intervals in all traces of a profile together: they travel with the spec."""
CYCLES = 64
"""The on/off process starts anew after this many mean cycles, so that a late time costs no more than an early one."""
LOOK_AHEAD = 1000
"""At most this many such stretches are searched for the next on-interval."""


class Always(Record):
    """The device is always on."""

    name: Literal["always"] = "always"


class OnOff(Record):
    """The device is on and off in turn, for exponentially distributed times; it is on for on / (on + off) of all time.

    The process starts in its stationary state, and starts anew after every `CYCLES` mean cycles, so that the
    probability of being on is the same at all times.
    """

    name: Literal["on_off"] = "on_off"
    mean_on_s: Seconds
    mean_off_s: Seconds


class Trace(Record):
    """The device is on during the intervals [from, to) of a trace, in simulated seconds.

    Devices take the traces in turn.

    Attributes:
        traces: the on-intervals of each trace, in order. A spec may give `intervals` for a single trace instead.
        period_s: the traces repeat after this time; None means that the device stays off after the last interval.
    """

    name: Literal["trace"] = "trace"
    traces: Annotated[
        tuple[Annotated[tuple[Interval, ...], Field(max_length=MAX_INTERVALS)], ...],
        Field(min_length=1, max_length=MAX_INTERVALS),
    ]
    period_s: Seconds | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_trace(cls, raw: Any) -> Any:
        if isinstance(raw, Mapping) and "file" in raw:
            raise ValueError("only `strata run SPEC` reads a trace file; elsewhere list its intervals in `traces`")
        if isinstance(raw, Mapping) and "intervals" in raw and "traces" not in raw:
            return {**{key: value for key, value in raw.items() if key != "intervals"}, "traces": [raw["intervals"]]}
        return raw

    @model_validator(mode="after")
    def _in_order(self) -> Trace:
        if sum(map(len, self.traces)) > MAX_INTERVALS:
            raise ValueError(f"the traces have more than {MAX_INTERVALS} intervals together")
        for number, trace in enumerate(self.traces):
            check_trace(trace, f"trace {number}", self.period_s)
        return self


def check_trace(trace: Sequence[Interval], what: str, period_s: float | None = None) -> None:
    """Check that on-intervals are valid, in order, disjoint, and within the period.

    Raises:
        ValueError: naming the interval.
    """
    for begin, end in trace:
        if not 0 <= begin < end < math.inf:
            raise ValueError(f"{what}: [{begin:g}, {end:g}] is not an interval of simulated seconds from 0 on")
        if period_s is not None and end > period_s:
            raise ValueError(f"{what}: [{begin:g}, {end:g}] lies beyond period_s {period_s:g}")
    for one, following in pairwise(trace):
        if one[1] > following[0]:
            raise ValueError(f"{what}: [{following[0]:g}, {following[1]:g}] begins before the interval before it ends")


def _kind(raw: Any) -> str:
    return str(raw.get("name") if isinstance(raw, Mapping) else getattr(raw, "name", None))


def _spelt_out(raw: Any) -> Any:
    """Expand the short form: `availability: always` is `{name: always}`."""
    raw = {"name": raw} if isinstance(raw, str) else raw
    if isinstance(raw, Mapping):
        check_known("availability", raw.get("name"), ("always", "on_off", "trace"))
    return raw


Availability = Annotated[
    Annotated[Always, Tag("always")] | Annotated[OnOff, Tag("on_off")] | Annotated[Trace, Tag("trace")],
    Discriminator(_kind),
    BeforeValidator(_spelt_out),
]


def is_on(availability: Availability, seat: int, at_s: float, seeds: Seeds) -> bool:
    """Return whether a device is on at a simulated time.

    Args:
        availability: the availability in the device's profile.
        seat: the device's number.
        at_s: simulated seconds since the run began.
        seeds: the device's random streams in this run.
    """
    return next_on(availability, seat, at_s, seeds) == at_s


def next_on(availability: Availability, seat: int, at_s: float, seeds: Seeds) -> float | None:
    """Return the first simulated time from `at_s` on at which the device is on; None if it stays off."""
    if isinstance(availability, OnOff):
        return _next_of(_on_times(availability, at_s, seeds), at_s)
    if isinstance(availability, Trace):
        return _next_of(_trace_times(availability, seat, at_s), at_s)
    return at_s


def _next_of(intervals: Iterator[Interval], at_s: float) -> float | None:
    return next((max(begin, at_s) for begin, end in intervals if end > at_s), None)


def _trace_times(trace: Trace, seat: int, at_s: float) -> Iterator[Interval]:
    """Yield the on-intervals from about `at_s` on; for a periodic trace, those of this period and the next."""
    own = trace.traces[seat % len(trace.traces)]
    if trace.period_s is None:
        yield from islice(own, max(bisect_right(own, (at_s, at_s)) - 1, 0), None)
        return
    cycle = at_s // trace.period_s
    for base in (cycle * trace.period_s, (cycle + 1) * trace.period_s):
        yield from ((base + begin, base + end) for begin, end in own)


def _on_times(times: OnOff, at_s: float, seeds: Seeds) -> Iterator[Interval]:
    """Yield the on-intervals, stretch by stretch, from the stretch that contains `at_s`."""
    length = CYCLES * (times.mean_on_s + times.mean_off_s)
    first = int(at_s // length)
    for stretch in range(first, first + LOOK_AHEAD):
        yield from _stretch(times, stretch * length, length, seeds(f"availability {stretch}"))


def _stretch(times: OnOff, begin: float, length: float, seed: int) -> Iterator[Interval]:
    """Yield the on-intervals of one stretch; its first state is drawn with the stationary probability."""
    rng = np.random.default_rng(seed)
    on = uniform01(seed) < times.mean_on_s / (times.mean_on_s + times.mean_off_s)
    now, end = begin, begin + length
    while now < end:
        until = now + rng.exponential(times.mean_on_s if on else times.mean_off_s)
        until = min(max(until, math.nextafter(now, end)), end)  # so late that a short interval is lost in rounding
        if on:
            yield now, until
        now, on = until, not on


def parse_traces(text: str) -> list[list[Interval]]:
    """Parse a trace file: the on-intervals of each trace.

    Raises:
        ValueError: naming the line or the trace, and the fault.
    """
    found: dict[int, list[Interval]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            trace, interval = _read(words, number)
            found.setdefault(trace, []).append(interval)
    if not found:
        raise ValueError("the file has no interval")
    missing = next((trace for trace in range(len(found)) if trace not in found), None)
    if missing is not None:
        raise ValueError(f"traces are numbered from 0 without gaps; there is no trace {missing}")
    for trace, intervals in found.items():
        check_trace(intervals, f"trace {trace}")
    return [found[trace] for trace in range(len(found))]


def _read(words: list[str], number: int) -> tuple[int, Interval]:
    """Parse one line. (`float` accepts NaN, which `check_trace` refuses.)"""
    try:
        trace, begin, end = words
        return int(trace), (float(begin), float(end))
    except ValueError:
        raise ValueError(f"line {number} reads {' '.join(words)[:60]!r}, not `TRACE FROM TO`") from None
