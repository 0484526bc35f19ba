"""`Tally`: how often real numbers occurred, by whole-number keys in their order; tallies add up exactly in any order.

A double's bits, read as a whole number, are in the order of the doubles. So numbers are counted by these keys, and two
are told apart whatever their size. Where a row has more keys than it may have, its lowest bits are dropped, as few as
suffice: neighbours then share a key, near 0 as well as far from it. How many are dropped depends on all numbers that
were counted, never on how they were grouped, since the parts of a row never have more keys than the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from shared.core.bounds import Count
from shared.core.records import Record

MAX_KEYS = 2**15
"""Most keys of all rows of a tally."""
Keys = npt.NDArray[np.int64]
_Key = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Row(Record):
    """The counts of one row, for numbers of two sides, such as those of a class and the others.

    Attributes:
        dropped: lowest bits of the keys that are dropped.
        keys: without these bits, rising.
        others, own: by key, how many numbers of either side have it.
    """

    dropped: Annotated[int, Field(ge=0, lt=64)] = 0
    keys: Annotated[tuple[_Key, ...], Field(max_length=MAX_KEYS)] = ()
    others: Annotated[tuple[Count, ...], Field(max_length=MAX_KEYS)] = ()
    own: Annotated[tuple[Count, ...], Field(max_length=MAX_KEYS)] = ()

    @classmethod
    def of(cls, keys: Keys, others: Keys, own: Keys, *, dropped: int, most: int) -> Row:
        """Returns the row of some keys, each of which may come more than once, with at most `most` keys."""
        places, where = np.unique(keys, return_inverse=True)
        if (more := _bits_to_drop(places, most)) > 0:
            dropped += more
            places, where = np.unique(keys >> more, return_inverse=True)
        counts = [np.zeros(len(places), np.int64) for _ in range(2)]
        for into, side in zip(counts, (others, own), strict=True):
            np.add.at(into, where, side)
        kept, apart, mine = (tuple(side.tolist()) for side in (places, *counts))
        return cls.model_construct(dropped=dropped, keys=kept, others=apart, own=mine)

    def added(self, other: Row, most: int) -> Row:
        """Returns the row of both rows' numbers."""
        dropped = max(self.dropped, other.dropped)
        sides = [[np.array(side, np.int64) for side in (row.keys, row.others, row.own)] for row in (self, other)]
        for row, columns in zip((self, other), sides, strict=True):
            columns[0] >>= dropped - row.dropped
        return Row.of(*(np.concatenate(pair) for pair in zip(*sides, strict=True)), dropped=dropped, most=most)

    def fault(self, most: int) -> str | None:
        """Returns why this can be no row of at most `most` keys, None if it can."""
        if not len(self.keys) == len(self.others) == len(self.own) <= most:
            return f"rows of {len(self.keys)}, {len(self.others)} and {len(self.own)} numbers, at most {most}"
        if any(a >= b for a, b in zip(self.keys, self.keys[1:], strict=False)):
            return "keys that do not rise"
        if any(a + b == 0 for a, b in zip(self.others, self.own, strict=True)):
            return "keys without numbers"
        return None


class Tally(Record):
    """Rows of counts.

    Attributes:
        most: most keys of a row.
        rows: one for each thing that is counted, such as a class.
    """

    most: Annotated[int, Field(ge=2, le=MAX_KEYS)]
    rows: Annotated[tuple[Row, ...], Field(max_length=MAX_KEYS)]

    @classmethod
    def empty(cls, most: int, n_rows: int) -> Tally:
        """Returns the tally of no numbers."""
        return cls(most=most, rows=(Row(),) * n_rows)

    def counting(self, columns: Sequence[tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]]) -> Tally:
        """Returns a tally like this one of other numbers: for each row, the numbers and which are of its own side."""
        rows = []
        for numbers, own in columns:
            mine = own.astype(np.int64)
            rows.append(Row.of(keys_of(numbers), 1 - mine, mine, dropped=0, most=self.most))
        return Tally.model_construct(most=self.most, rows=tuple(rows))

    def __add__(self, other: Any) -> Tally:
        if not isinstance(other, Tally) or (self.most, len(self.rows)) != (other.most, len(other.rows)):
            raise ValueError("tallies of other rows")
        rows = tuple(one.added(two, self.most) for one, two in zip(self.rows, other.rows, strict=True))
        return Tally.model_construct(most=self.most, rows=rows)

    def fault(self, like: Tally) -> str | None:
        """Returns why this cannot be a tally of the same kind as another, None if it can."""
        if (self.most, len(self.rows)) != (like.most, len(like.rows)):
            return f"{len(self.rows)} rows of {self.most} keys, not {len(like.rows)} of {like.most}"
        return next(filter(None, (row.fault(self.most) for row in self.rows)), None)


def keys_of(numbers: npt.NDArray[np.float64]) -> Keys:
    """Returns whole numbers in the order of these, infinities too; equal for equal numbers, also for 0 and -0."""
    bits = np.ascontiguousarray(numbers, np.float64).view(np.int64)
    return np.where(bits < 0, -(bits & np.int64(2**63 - 1)), bits)


def _bits_to_drop(keys: Keys, most: int) -> int:
    """Returns how many of the lowest bits rising keys must lose for at most `most` to be left."""
    if len(keys) <= most:
        return 0
    apart = (keys[1:] ^ keys[:-1]).view(np.uint64)  # neighbours stay apart while a bit in which they differ is kept
    high, low = (
        np.frexp(half.astype(np.float64))[1] for half in (apart >> np.uint64(32), apart & np.uint64(2**32 - 1))
    )
    lengths = np.where(high > 0, high + 32, low)
    most_th = len(lengths) - most  # of the lengths in rising order, the one that so many neighbours at most exceed
    return int(np.partition(lengths, most_th)[most_th])
