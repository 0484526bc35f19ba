"""How many of a number of seats each agent gets, in proportion to its capacity, also beyond it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def seat_shares(n_seats: int, capacities: Sequence[int], loads: Sequence[int]) -> Ints:
    """Returns the number of seats for each agent.

    One after another, the seats go to the agent that is full the fewest times, of these to the one that has the fewest
    seats, of these to the first. It is not done one after another: there may be a million.

    Args:
        n_seats: the seats to distribute.
        capacities: number of devices of each agent, (n,), at least 1.
        loads: number of seats that each agent has, (n,).
    """
    capacity, have, left = np.array(capacities, np.int64), np.array(loads, np.int64), n_seats
    before = have.copy()
    while left:
        times = have // capacity
        lowest = times == times.min()
        room = np.where(lowest, (times + 1) * capacity - have, 0)
        if lowest.all() and left >= room.sum():
            have += room
            left -= int(room.sum())
            rounds = left // int(capacity.sum())
            have += rounds * capacity
            left -= rounds * int(capacity.sum())
        elif left >= room.sum():
            have += room
            left -= int(room.sum())
        else:
            have = _levelled(have, have + room, lowest, left)
            left = 0
    return have - before


def _levelled(have: Ints, most: Ints, lowest: npt.NDArray[np.bool_], left: int) -> Ints:
    """The numbers once `left` seats went, one by one, to the lowest number below its `most`, of these to the first."""
    low, high = int(have[lowest].min()), int(most[lowest].max())
    while low < high:  # the highest level that all can be brought to
        level = (low + high + 1) // 2
        fits = int((np.clip(level, have, most) - have)[lowest].sum()) <= left
        low, high = (level, high) if fits else (low, level - 1)
    raised = np.where(lowest, np.clip(low, have, most), have)
    rest = left - int((raised - have).sum())
    ready = np.flatnonzero(lowest & (raised == low) & (raised < most))[:rest]
    raised[ready] += 1
    return raised
