"""Division of a client's samples among workers: each sample once, eq. 2 of the paper, and the earliest finish."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.federation.scheduling import Participant, Shares, balanced, divided_batch, proportional

COMPUTE = st.lists(st.floats(0, 1e6), min_size=1, max_size=8)
RULES = pytest.mark.parametrize("rule", [proportional, balanced])


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def sizes(shares: Shares, n: int) -> list[int]:
    return [len(shares.get(seat, [])) for seat in range(n)]


def is_whole(shares: Shares, task: Any) -> None:
    together = np.concatenate([np.empty(0, np.int64), *shares.values()])
    assert sorted(together.tolist()) == sorted(task.tolist())
    assert all(len(share) for share in shares.values())


@given(compute=COMPUTE, n=st.integers(0, 300))
def test_proportional_shares_assign_each_sample_once_and_are_eq_2_to_one_sample(compute: list[float], n: int) -> None:
    task = np.arange(1000, 1000 + n)
    shares = proportional([Participant(seat, sps) for seat, sps in enumerate(compute)], task, rng())
    is_whole(shares, task)
    if sum(compute):
        exact = [n * (sps / max(compute)) / sum(c / max(compute) for c in compute) for sps in compute]
        assert all(abs(a - b) < 1 + 1e-6 for a, b in zip(sizes(shares, len(compute)), exact, strict=True))


def test_without_free_compute_the_server_takes_all_or_else_all_take_equal_shares() -> None:
    task, devices = np.arange(9), [Participant(0, 0.0), Participant(1, 0.0)]
    assert sizes(proportional([*devices, Participant(2, 0.0, server=True)], task, rng()), 3) == [0, 0, 9]
    assert sizes(proportional([*devices, Participant(2, 0.0)], task, rng()), 3) == [3, 3, 3]


def test_proportional_shares_are_in_seeded_order() -> None:
    workers = [Participant(0, 1.0), Participant(1, 1.0)]
    one, same = (proportional(workers, np.arange(100), rng())[0].tolist() for _ in range(2))
    other = proportional(workers, np.arange(100), np.random.default_rng(8))[0].tolist()
    assert one == same
    assert one != other
    assert one != list(range(50))


WORKER = st.tuples(st.floats(0, 50), st.floats(1e-3, 10), st.floats(0, 5), st.integers(0, 30))


def made(figures: list[tuple[float, float, float, int]], server: bool = False) -> tuple[list[Participant], Any]:
    """Returns workers with the given numbers of samples, and all samples."""
    ends = list(itertools.accumulate(n for *_, n in figures))
    task = np.arange(ends[-1], dtype=np.int64)
    parts = np.split(task, ends[:-1])
    found = [
        Participant(seat, 1 / sample_s, fixed_s, sample_s, moved_s, own, server and seat == 0)
        for seat, ((fixed_s, sample_s, moved_s, _), own) in enumerate(zip(figures, parts, strict=True))
    ]
    return found, task


def last_s(workers: list[Participant], counts: list[int]) -> float:
    return max(worker.finishes_s(n) for worker, n in zip(workers, counts, strict=True))


@given(figures=st.lists(WORKER, min_size=1, max_size=6), server=st.booleans())
def test_balanced_shares_assign_each_sample_once_and_no_single_move_improves_them(
    figures: list[tuple[float, float, float, int]], server: bool
) -> None:
    workers, task = made(figures, server)
    shares = balanced(workers, task, rng())
    is_whole(shares, task)
    counts = sizes(shares, len(workers))
    until_s = last_s(workers, counts)
    for here, there in itertools.permutations(range(len(workers)), 2):
        if counts[here]:
            moved = [n - (s == here) + (s == there) for s, n in enumerate(counts)]
            assert last_s(workers, moved) >= until_s * (1 - 1e-9)


@given(figures=st.lists(WORKER, min_size=2, max_size=3))
def test_balanced_shares_are_optimal(figures: list[tuple[float, float, float, int]]) -> None:
    workers, task = made([(a, b, c, n % 7) for a, b, c, n in figures])
    n = len(task)
    every = itertools.product(range(n + 1), repeat=len(workers) - 1)
    best = min((last_s(workers, [*first, n - sum(first)]) for first in every if sum(first) <= n), default=0.0)
    assert last_s(workers, sizes(balanced(workers, task, rng()), len(workers))) <= best * (1 + 1e-9) + 1e-12


def test_balanced_shares_keep_samples_in_place_and_count_those_that_move() -> None:
    """One of two equal workers has all samples: half of them move if moves are free, none if they are expensive."""
    free = [Participant(0, 1.0, 0.0, 1.0, 0.0, np.arange(10)), Participant(1, 1.0, 0.0, 1.0, 0.0)]
    assert sizes(balanced(free, np.arange(10), rng()), 2) == [5, 5]
    dear = [Participant(0, 1.0, 0.0, 1.0, 0.0, np.arange(10)), Participant(1, 1.0, 0.0, 1.0, 3.0)]
    assert sizes(balanced(dear, np.arange(10), rng()), 2) == [8, 2]  # 8 s and 2 x (1 + 3) s
    far = [Participant(0, 1.0, 0.0, 1.0, 0.0, np.arange(10)), Participant(1, 1.0, 20.0, 1.0, 0.0)]
    assert sizes(balanced(far, np.arange(10), rng()), 2) == [10, 0]


@RULES
def test_an_empty_task_gives_no_shares(rule: Any) -> None:
    assert rule([Participant(0, 1.0), Participant(1, 1.0)], np.empty(0, np.int64), rng()) == {}


@given(shares=st.lists(st.integers(1, 200), min_size=1, max_size=8), batch=st.integers(1, 64))
def test_a_divided_batch_is_the_share_of_the_whole_to_half_a_sample(shares: list[int], batch: int) -> None:
    total = sum(shares)
    parts = [divided_batch(batch, n, total) for n in shares]
    exact = np.array(shares) * batch / total
    assert all(part == 1 or abs(part - of) <= 0.5 for part, of in zip(parts, exact, strict=True))
    assert all(part >= 1 for part in parts)
    assert divided_batch(batch, total, total) == batch
