"""Trace files: when devices were on.

A text file with one on-interval a line, `TRACE FROM TO`: the number of the trace, from 0, and simulated seconds. A
trace's intervals stand in order; empty lines and what follows a `#` are left out.

    # trace from to
    0      0  3600
    0   7200  9000
    1    100  5000
"""

from __future__ import annotations

from shared.profiles.availability import Interval, check_trace


def parse_traces(text: str) -> list[list[Interval]]:
    """The on-intervals of each trace.

    Raises:
        ValueError: naming the line, or the trace, and what is wrong.
    """
    found: dict[int, list[Interval]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            trace, interval = _read(words, number)
            found.setdefault(trace, []).append(interval)
    if not found:
        raise ValueError("no interval in it")
    missing = next((trace for trace in range(len(found)) if trace not in found), None)
    if missing is not None:
        raise ValueError(f"traces are numbered from 0 without gaps; there is no trace {missing}")
    for trace, intervals in found.items():
        check_trace(intervals, f"trace {trace}")
    return [found[trace] for trace in range(len(found))]


def _read(words: list[str], number: int) -> tuple[int, Interval]:
    """One line; `float` reads NaN too, which `check_trace` refuses."""
    try:
        trace, begin, end = words
        return int(trace), (float(begin), float(end))
    except ValueError:
        raise ValueError(f"line {number} reads {' '.join(words)[:60]!r}, not `TRACE FROM TO`") from None
