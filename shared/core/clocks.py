"""How far the wall clocks of two machines are apart. Nothing decides by it but whether somebody is told."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

TOLERATED_S = 60.0
"""A larger difference is told: it is in times that people compare, and certificates have times."""


def is_off(ahead_s: float | None) -> bool:
    """Whether a clock is further ahead or behind than is tolerated."""
    return ahead_s is not None and abs(ahead_s) > TOLERATED_S


def told_clock(whose: str, ahead_s: float) -> str:
    """Returns in words how far the clock of something is ahead of another one; `it` is what was named before."""
    clock = "its clock" if whose == "it" else f"the clock of {whose}"
    return f"{clock} is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}"


def ahead_of(now_s: float, date: str) -> float | None:
    """Returns how many seconds a clock is ahead of the one in an HTTP header `Date`; None if that is none."""
    try:
        return now_s - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def written(now_s: float) -> str:
    """Returns the time of a clock as people read it, in UTC."""
    try:
        return datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{now_s:.0f} s after 1970"
