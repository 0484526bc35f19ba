"""Sets of whole numbers: in JSON they are progressions, as `0-98:2,101`, and may also be lists.

The seats of a run, up to a million, are placed in such sets, so a placement travels as a few of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from shared.core.bounds import LARGEST_SEATS

Numbers = npt.NDArray[np.int64]
TEXT_CHARS = 16 * 2**20
"""Longest text of a set: that of a million numbers in no order is shorter."""
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
BLOCK = 1024
"""Numbers that are made at a time for an iteration, which may end early."""
_FEWEST = 3
"""Fewest numbers that are written as a progression, unless they follow each other."""


def _ascending(numbers: Numbers) -> Numbers:
    """The numbers in order, each once (`np.unique` hashes them, which takes ten times as long)."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers.copy()
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


class NumberSet:
    """An immutable, sorted set of numbers from 0 to `LARGEST_SEATS` - 1.

    Args:
        numbers: in any order; each once or more often.
    """

    def __init__(self, numbers: Iterable[int] | Numbers = ()) -> None:
        given = numbers if isinstance(numbers, np.ndarray) else np.fromiter(numbers, np.int64)
        self.array: Numbers = _ascending(given.astype(np.int64, copy=False))
        self.array.setflags(write=False)

    @classmethod
    def _sorted(cls, numbers: Numbers) -> NumberSet:
        found = cls.__new__(cls)
        found.array = numbers
        numbers.setflags(write=False)
        return found

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.array[at : at + BLOCK].tolist() for at in range(0, len(self.array), BLOCK))

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = int(self.array.searchsorted(number))
        return at < len(self.array) and int(self.array[at]) == number

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, NumberSet) and np.array_equal(self.array, other.array))

    def __hash__(self) -> int:
        return hash(self.text)

    def __or__(self, other: NumberSet) -> NumberSet:
        few, many = sorted((self, other), key=len)
        return NumberSet(np.concatenate([few.array, many.array])) if len(few) else many

    def __sub__(self, other: NumberSet) -> NumberSet:
        common = self & other
        return self._sorted(np.delete(self.array, self.array.searchsorted(common.array))) if len(common) else self

    def __and__(self, other: NumberSet) -> NumberSet:
        few, many = sorted((self, other), key=len)
        at = np.minimum(many.array.searchsorted(few.array), max(len(many) - 1, 0))
        return few.where(many.array[at] == few.array) if len(few) else few

    def where(self, chosen: npt.NDArray[np.bool_]) -> NumberSet:
        """Returns the numbers for which this mask, (n,), is true."""
        return self._sorted(self.array[chosen])

    def isdisjoint(self, other: NumberSet) -> bool:
        """Whether the two have no number in common."""
        return not len(self & other)

    def __repr__(self) -> str:
        return f"NumberSet({self.text!r})"

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """The progressions, `first-last:step` each, of which a set has one text only."""
        return ",".join(_written(*part) for part in _progressions(self.array))

    @classmethod
    def parse(cls, text: str) -> NumberSet:
        """Reads a text.

        Raises:
            ValueError: it is none, or names numbers beyond the limit.
        """
        if len(text) > TEXT_CHARS:
            raise ValueError(f"a set of more than {TEXT_CHARS} characters")
        parts = [_read(part) for part in text.split(",")] if text else []
        n = sum(map(len, parts))
        if n > LARGEST_SEATS:
            raise ValueError(f"a set of {n} numbers, at most {LARGEST_SEATS}")
        found = cls(
            np.concatenate(
                [np.arange(p.start, p.stop, p.step, dtype=np.int64) for p in parts] or [np.empty(0, np.int64)]
            )
        )
        if len(found) != n:
            raise ValueError("a set that names a number twice")
        return found

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """As JSON a set is its text."""
        as_text = core_schema.no_info_after_validator_function(
            cls.parse, core_schema.str_schema(max_length=TEXT_CHARS, strict=True)
        )
        number = core_schema.int_schema(ge=0, lt=LARGEST_SEATS, strict=True)
        as_list = core_schema.no_info_after_validator_function(
            cls, core_schema.list_schema(number, max_length=LARGEST_SEATS, fail_fast=True)
        )
        return core_schema.json_or_python_schema(
            json_schema=core_schema.union_schema([as_text, as_list]),
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), as_text, as_list]),
            serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema()),
        )


EMPTY = NumberSet()


class SetIndex:
    """Finds which of several sets holds a number.

    Args:
        sets: that have no number in common.

    Raises:
        ValueError: two of them have.
    """

    def __init__(self, sets: Sequence[NumberSet]) -> None:
        numbers = np.concatenate([one.array for one in sets] or [np.empty(0, np.int64)])
        order = np.argsort(numbers, kind="stable")
        self.all = NumberSet(numbers)
        self._owners = np.repeat(np.arange(len(sets)), [len(one) for one in sets])[order]
        if len(self.all) != len(numbers):
            raise ValueError("two sets have the same number")

    def find(self, number: int) -> int | None:
        """The index of the set that holds a number; None if none does."""
        at = int(self.all.array.searchsorted(number))
        there = at < len(self.all) and int(self.all.array[at]) == number
        return int(self._owners[at]) if there else None


def _progressions(array: Numbers) -> Iterator[tuple[int, int, int]]:
    """The first and last number and the step of each progression; the longest possible from the first number on."""
    n = len(array)
    if not n:
        return
    steps = np.diff(array)
    ends = np.append(np.flatnonzero(np.diff(steps)), len(steps) - 1)  # the last step of each stretch of equal steps
    at, stretch = 0, 0
    while at < n:
        while stretch < len(ends) and ends[stretch] < at:
            stretch += 1
        last = int(ends[stretch]) + 1 if at < n - 1 else at
        step = int(steps[at]) if last > at else 1
        if last - at + 1 < _FEWEST and step > 1:
            last, step = at, 1
        yield int(array[at]), int(array[last]), step
        at = last + 1


def _written(first: int, last: int, step: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"


def _read(part: str) -> range:
    found = _PART.fullmatch(part)
    if found is None:
        raise ValueError(f"{part[:40]!r} is no progression such as 7, 0-9 or 0-98:2")
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    if not first <= last < LARGEST_SEATS or step < 1:
        raise ValueError(f"{part}: numbers ascend from 0 to {LARGEST_SEATS - 1}")
    return range(first, last + 1, step)
