"""Selection and scheduling by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from shared import policies
from shared.context import Ctx, NoParams
from shared.population import Samples, Seat
from shared.profiles import Profile
from shared.spec import ExperimentSpec


def seat(number: int, n_train: int = 10) -> Seat:
    train = np.arange(number * 100, number * 100 + n_train, dtype=np.int64)
    return Seat(number, 0, "train", Profile(), train, Samples("test", train[:0]))


def ctx(round_no: int = 1, **spec: Any) -> Ctx:
    return Ctx(spec=ExperimentSpec(**spec), params=NoParams(), phase="train", round_no=round_no, n_clients=9, edge=0)


SEATS = [seat(number) for number in (2, 5, 7, 11)]


def test_all_selects_all() -> None:
    assert policies.select(ctx(), SEATS) == [2, 5, 7, 11]


@pytest.mark.parametrize(("fraction", "n"), [(0.01, 1), (0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4)])
def test_random_selects_the_fraction_but_at_least_one(fraction: float, n: int) -> None:
    chosen = policies.select(ctx(select="random", fraction_train=fraction), SEATS)
    assert len(set(chosen)) == len(chosen) == n
    assert chosen == sorted(chosen)
    assert set(chosen) <= {2, 5, 7, 11}


@pytest.mark.parametrize(
    ("fraction", "beyond", "n", "wanted"), [(0.5, 0.5, 3, 2), (0.25, 0.1, 2, 1), (0.75, 1.0, 4, 3)]
)
def test_overselection_selects_beyond_what_is_wanted(fraction: float, beyond: float, n: int, wanted: int) -> None:
    there = ctx(select="random", fraction_train=fraction, overselection=beyond)
    assert len(policies.select(there, SEATS)) == n
    assert policies.n_wanted(there, SEATS) == wanted


def test_random_selects_others_in_other_rounds_and_the_same_in_the_same() -> None:
    found = [policies.select(ctx(round_no, select="random", fraction_train=0.5), SEATS) for round_no in range(1, 200)]
    again = [policies.select(ctx(round_no, select="random", fraction_train=0.5), SEATS) for round_no in range(1, 200)]
    assert found == again
    counts = Counter(number for chosen in found for number in chosen)
    assert all(75 < counts[number] < 125 for number in (2, 5, 7, 11))  # 199 rounds, half of them: 99.5 +- 3.5 sigma


def test_of_no_seats_none_is_selected_and_none_has_work() -> None:
    assert policies.select(ctx(), []) == []
    assert policies.select(ctx(select="random", fraction_train=0.5), []) == []
    for name in ("own_data", "equal"):
        assert policies.schedule(ctx(schedule=name), []) == {}


def test_own_data_gives_everybody_the_specs_work_but_not_the_worker_that_holds_nothing() -> None:
    works = policies.schedule(ctx(local_epochs=3, batch_size=8), [seat(1), seat(2, n_train=0)])
    assert list(works) == [1]
    assert (works[1].kind, works[1].epochs, works[1].steps, works[1].batch_size) == ("train", 3, None, 8)
    assert works[1].samples is None


def shares(found: Any) -> dict[int, list[int]]:
    return {number: work.samples.tolist() for number, work in found.items()}


def test_equal_shares_lose_and_double_nothing() -> None:
    members = [seat(0, 9), seat(1, 1), seat(2, 0)]
    found = shares(policies.schedule(ctx(schedule="equal"), members))
    assert [len(share) for share in found.values()] == [4, 3, 3]
    assert sorted(sample for share in found.values() for sample in share) == [*range(9), 100]
    assert all(share == sorted(share) for share in found.values())
    assert found != shares(policies.schedule(ctx(2, schedule="equal"), members))
    assert found == shares(policies.schedule(ctx(schedule="equal"), members))


def test_a_seat_without_a_share_is_not_visited() -> None:
    assert shares(policies.schedule(ctx(schedule="equal"), [seat(0, 1), seat(1, 0)])) == {0: [0]}


@pytest.mark.parametrize(
    ("round_no", "edge_round", "wave", "due"),
    [(3, 0, 0, True), (6, 0, 0, True), (4, 0, 0, False), (3, 1, 0, False), (3, 0, 1, False)],
)
def test_models_are_tested_once_in_a_round_that_is_due(round_no: int, edge_round: int, wave: int, due: bool) -> None:
    there = ctx(round_no, eval_every=3).at(edge_round=edge_round, wave=wave)
    assert policies.plain_work(there).evaluate is due
