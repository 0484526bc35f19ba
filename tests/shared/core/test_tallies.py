"""Tallies: the sum of parts is the tally of the whole, with as few bits dropped as suffice."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from shared.core.tallies import Tally, keys_of


def test_keys_are_in_the_order_of_doubles() -> None:
    numbers = np.array([-np.inf, -1e300, -1.0, -5e-324, -0.0, 0.0, 5e-324, 1.0, 1.0 + 2**-52, np.inf])
    keys = keys_of(numbers).tolist()
    assert keys == sorted(keys)
    assert len(set(keys)) == len(numbers) - 1  # 0 and -0 are equal


@pytest.mark.parametrize("most", [2, 3, 16, 100, 5000])
@pytest.mark.parametrize("seed", range(3))
def test_a_tally_does_not_depend_on_how_its_numbers_came_together(most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(2000) * 10.0 ** rng.integers(-6, 6, 2000)
    numbers[:500] = 0.5 + 1e-9 * rng.random(500)
    own = rng.random(2000) < 0.3
    empty = Tally.empty(most, 1)
    whole = empty.counting([(numbers, own)])
    parts = np.array_split(rng.permutation(2000), np.sort(rng.integers(0, 2000, 9)))
    row = whole.rows[0]
    assert reduce(lambda one, two: one + two, (empty.counting([(numbers[at], own[at])]) for at in parts)) == whole
    assert whole + empty == empty + whole == Tally.model_validate_json(whole.model_dump_json()) == whole
    assert sum(row.own) == own.sum()
    assert sum(row.others) == 2000 - own.sum()
    assert len(row.keys) == len(np.unique(keys_of(numbers) >> row.dropped)) <= most
    assert row.dropped == 0 or len(np.unique(keys_of(numbers) >> (row.dropped - 1))) > most
    assert whole.fault(empty) is None
