"""Sets of numbers: those of Python are the oracle; a set has one text, and other texts are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.core.bounds import LARGEST_SEATS
from shared.core.number_sets import EMPTY, NumberSet, SetIndex
from shared.core.records import Record, canonical

SETS = st.lists(st.integers(0, 60), max_size=40)


@settings(max_examples=40)
@given(SETS, SETS, st.integers(-1, 61))
def test_operations_are_those_of_sets(one: list[int], two: list[int], number: int) -> None:
    a, b, x, y = NumberSet(one), NumberSet(two), set(one), set(two)
    assert list(a) == a.array.tolist() == sorted(x)
    assert (len(a), bool(a), number in a) == (len(x), bool(x), number in x)
    assert [list(found) for found in (a | b, a & b, a - b)] == [sorted(x | y), sorted(x & y), sorted(x - y)]
    assert (a == b, a.isdisjoint(b), hash(a) == hash(NumberSet(x))) == (x == y, x.isdisjoint(y), True)


@settings(max_examples=40)
@given(SETS)
def test_a_text_names_the_numbers_of_its_set(numbers: list[int]) -> None:
    found = NumberSet(numbers)
    assert NumberSet.parse(found.text) == found
    assert NumberSet.parse(NumberSet(reversed(numbers)).text).text == found.text


TEXTS: dict[str, Any] = {
    "": [],
    "7": [7],
    "0-1": [0, 1],
    "0,2": [0, 2],
    "0-6:2,7,9,20-21": [0, 2, 4, 6, 7, 9, 20, 21],
    "1-3,10-30:10": [1, 2, 3, 10, 20, 30],
    "0-999996:4": range(0, 1_000_000, 4),
}


def test_regular_sets_have_short_texts() -> None:
    assert [NumberSet(numbers).text for numbers in TEXTS.values()] == list(TEXTS)


def test_a_set_cannot_be_changed() -> None:
    given_to = np.array([3, 1])
    held = NumberSet(given_to)
    given_to[0] = 9
    with pytest.raises(ValueError, match="read-only"):
        held.array[0] = 5
    assert list(held) == [1, 3]


NO_SETS = {
    "x": "'x' is no progression",
    "1-": "is no progression",
    "1,,2": "'' is no progression",
    "-1": "is no progression",
    "5-3": "5-3: numbers ascend",
    "0-8:0": "numbers ascend",
    f"{LARGEST_SEATS}": f"to {LARGEST_SEATS - 1}",
    "0-4,3": "names a number twice",
    ",".join(["0-1000000"] * 3): f"at most {LARGEST_SEATS}",
}


@pytest.mark.parametrize("text", NO_SETS)
def test_a_text_that_is_no_set_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=NO_SETS[text]):
        NumberSet.parse(text)


class Holder(Record):
    """A record with a set."""

    seats: NumberSet = EMPTY


def test_a_record_writes_the_text_and_also_reads_a_list() -> None:
    held = Holder(seats=NumberSet([0, 2, 4]))
    assert canonical(held) == '{"seats":"0-4:2"}'
    for json in ('{"seats":"0-4:2"}', '{"seats":[4,0,2]}'):
        assert Holder.model_validate_json(json) == held
    assert Holder.model_validate({"seats": [0, 2, 4]}) == held == held.replace()


def test_a_record_refuses_anything_else() -> None:
    for json in ("[-1]", f"[{LARGEST_SEATS}]", "[true]", "[0.5]", "3", '"x"', '{"a":1}', '["1"]'):
        with pytest.raises(ValidationError, match="seats"):
            Holder.model_validate_json(f'{{"seats":{json}}}')


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 60), max_size=15), max_size=6))
def test_an_index_finds_the_set_that_holds_a_number(lists: list[list[int]]) -> None:
    seen: set[int] = set()
    sets = []
    for numbers in lists:
        sets.append(NumberSet(set(numbers) - seen))
        seen |= set(numbers)
    index = SetIndex(sets)
    assert list(index.all) == sorted(seen)
    for number in range(61):
        assert index.find(number) == next((at for at, one in enumerate(sets) if number in one), None)
    if seen:
        with pytest.raises(ValueError, match="two sets have the same number"):
            SetIndex([*sets, NumberSet([min(seen)])])
