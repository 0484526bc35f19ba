"""The order of runs: a number that never goes back, whatever a wall clock does.

It is a hybrid logical clock (S. S. Kulkarni et al., "Logical Physical Clocks", OPODIS 2014): the wall clock, or one
more than the largest number that is known, if the clock has been set back since. So runs of several clouds and folders,
and those that were made before runs had numbers, sort by time as long as their clocks were right.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

BEHIND_MS = 1000
"""By how much a clock may seem set back without a remark: two runs may be created within a millisecond."""


def milliseconds(created_at: object) -> int:
    """Returns a creation time (ISO 8601) as milliseconds since 1970; 0 for what is none."""
    try:
        at = datetime.fromisoformat(str(created_at))
        return max(round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        return 0


def sequence_of_id(run: str) -> int:
    """Returns the time in a run's id, as `milliseconds` does."""
    return milliseconds(run[1:16].replace("-", "T"))


def sequence_of(sequence: object, created_at: object) -> int:
    """Returns the number that orders a run; of one that has none, the time of its creation."""
    return sequence if isinstance(sequence, int) and sequence > 0 else milliseconds(created_at)


def next_sequence(created_at: str, known: Iterable[int]) -> int:
    """Returns the number of a run that is created now: larger than all that are known."""
    return max(milliseconds(created_at), max(known, default=0) + 1)


def remarks(created_at: str, sequence: int) -> tuple[str, ...]:
    """Returns what a run says of a clock that was set back before it was created; nothing if it was not."""
    behind_ms = sequence - milliseconds(created_at)
    if behind_ms <= BEHIND_MS:
        return ()
    by = f"{behind_ms / 1000:.0f} s behind that of an earlier run"
    return (f"the cloud's clock is {by}: runs are ordered as they were created, and `created` does not tell it",)
