"""The evolution strategy compared with its formulas in numpy and with CMA-ES, and with random winners."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cmaes import CMA

from shared.algorithms._evolution import (
    Search,
    Strategy,
    after_trial,
    covariance_of,
    expected_length,
    new_search,
    with_child,
)

N = 10


def search_of(**changes: object) -> Search:
    zeros = (0.0, 0.0)
    values = {"parent": (0.5, 0.5), "child": (0.6, 0.4), "direction": (1.0, -1.0), "whitened": (2.0, -0.5)}
    return Search.model_validate({**values, "path": zeros, "sigma": 0.1, **changes})


# ---- one step


def test_direction_is_the_move_made_after_clipping() -> None:
    search = search_of(parent=(0.0, 0.95), sigma=0.5)
    found = with_child(search, np.eye(2), Strategy(), np.random.default_rng(4))
    drawn = np.array([0.0, 0.95]) + 0.5 * np.random.default_rng(4).standard_normal(2)
    clipped = np.clip(drawn, 0, 0.95)
    assert not np.array_equal(drawn, clipped)
    assert found.child == tuple(clipped)
    assert found.direction == tuple((clipped - [0.0, 0.95]) / 0.5)
    assert found.whitened == pytest.approx(found.direction)


def test_winning_child_moves_path_and_step_size() -> None:
    found = after_trial(search_of(path=(0.3, 0.1)), True, Strategy(alpha=0.2))
    path = 0.8 * np.array([0.3, 0.1]) + 0.6 * np.array([2.0, -0.5])  # sqrt(1 - 0.64)
    expected = np.sqrt(2) * (1 - 1 / 8 + 1 / 84)
    assert found.parent == (0.6, 0.4)
    assert found.won == (1.0, -1.0)
    assert found.path == pytest.approx(path)
    assert found.sigma == pytest.approx(0.1 * np.exp(0.2 * (np.linalg.norm(path) / expected - 1)))
    assert after_trial(search_of(sigma=0.4999, path=(9.0, 9.0)), True, Strategy()).sigma == 0.5


def test_winning_parent_leaves_the_search_unchanged() -> None:
    search = search_of(won=(1.0, 2.0), path=(0.3, 0.1))
    assert after_trial(search, False, Strategy()) == search


def test_covariance_is_that_of_the_last_winning_directions() -> None:
    searches = [search_of(won=(1.0, 2.0)), search_of(), search_of(won=(3.0, -1.0))]
    found = covariance_of(searches, 2, Strategy(shrinkage=0.1))
    mean = (np.outer((1, 2), (1, 2)) + np.outer((3, -1), (3, -1))) / 2
    assert np.allclose(found, 0.9 * mean + 0.1 * np.eye(2))
    assert np.array_equal(covariance_of([search_of()], 2, Strategy()), np.eye(2))
    assert np.array_equal(covariance_of(searches, 2, Strategy(adapted=False)), np.eye(2))


def test_step_size_0_stays_0() -> None:
    still = new_search((0.0, 0.0), 0.0, np.eye(2), Strategy(), np.random.default_rng(0))
    assert still.child == (0.0, 0.0)
    assert after_trial(still, False, Strategy()) == still


# ---- CMA-ES

SIGMA = 0.25
SHARED = np.array([[2.0, 0.6, -0.3], [0.6, 0.5, 0.1], [-0.3, 0.1, 0.8]])


def cma_of(n_given: int, alpha: float, covariance: np.ndarray[Any, Any], **more: Any) -> Any:
    """The package's CMA-ES, given only the best, with learning rates with which its formulas are (7), (10) and (11).

    By its private names, as version 0.13.1 has them: everything it is given is recombined, with equal weights
    (`_mu = _popsize`); mu_eff is 1, so that the path's factor is sqrt(a (2 - a)), which is sqrt(1 - (1 - a)^2);
    d_sigma is 1, so that c_sigma / d_sigma is a; and C is what the rank-mu update makes alone (c_1 = 0, c_mu = 1).

    Differences: CMA-ES moves the mean to the winners among several children and has no parent that stays (here it is
    given nothing then); it keeps some of the old C and adds p_c p_c^T where (7) forgets and the readings shrink to I;
    its step size has a bound of 1e32; and z is turned into C's axes before it is stretched, B D z for C^(1/2) z.
    """
    found: Any = CMA(mean=np.full(len(covariance), 0.5), sigma=SIGMA, cov=covariance.copy(), **more)
    found._popsize = found._mu = n_given
    found._weights = np.full(n_given, 1 / n_given)
    found._mu_eff, found._c_sigma, found._d_sigma, found._c1, found._cmu = 1.0, alpha, 1.0, 0.0, 1.0
    return found


@pytest.mark.parametrize("n", [2, 8, 40])
def test_expected_length_is_that_of_cma_es(n: int) -> None:
    assert expected_length(n) == pytest.approx(cma_of(1, 0.2, np.eye(n))._chi_n, rel=1e-15)


def test_covariance_of_the_last_directions_is_a_rank_mu_update_alone() -> None:
    moves = np.random.default_rng(6).normal(size=(5, 3))
    theirs = cma_of(5, 0.2, SHARED)
    theirs.tell([(0.5 + SIGMA * move, float(rank)) for rank, move in enumerate(moves)])
    searches = [search_of(won=tuple(move)) for move in moves]
    assert np.allclose(covariance_of(searches, 3, Strategy(shrinkage=0.0)), theirs._C, rtol=1e-12)


def test_a_search_equals_cma_es_given_the_winning_children() -> None:
    """Thirty trials from the same normal draws; every second child wins, and some are clipped to the bounds."""
    strategy = Strategy(alpha=0.3, max_gene=0.6, max_sigma=1e9)
    bounds, covariance = np.array([[0.0, 0.6]] * 3), SHARED
    theirs = cma_of(1, 0.3, covariance, bounds=bounds, n_max_resampling=0)  # clips what it has drawn once
    mine, n_clipped, sigmas = (
        new_search((0.5,) * 3, SIGMA, covariance, strategy, np.random.default_rng(0)),
        0,
        set[float](),
    )
    for trial in range(30):
        mine = with_child(mine, covariance, strategy, np.random.default_rng(trial))
        theirs._C, theirs._B, theirs._D = covariance.copy(), None, None
        axes, _ = theirs._eigen_decomposition()
        drawn = axes.T @ np.random.default_rng(trial).standard_normal(3)  # C^(1/2) z = B D (B^T z)
        theirs._rng = SimpleNamespace(randn=lambda n, drawn=drawn: drawn)
        child = theirs.ask()
        assert mine.child == pytest.approx(child, rel=1e-9, abs=1e-12)
        n_clipped += bool(np.any((child == 0) | (child == 0.6)))
        mine = after_trial(mine, trial % 2 == 0, strategy)
        if trial % 2 == 0:
            theirs.tell([(child, 0.0)])
            covariance = covariance_of([mine], 3, strategy)  # shrunk, which CMA-ES does not
        assert mine.parent == pytest.approx(theirs.mean, rel=1e-9, abs=1e-12)
        assert mine.path == pytest.approx(theirs._p_sigma, rel=1e-9)  # (10)
        assert mine.sigma == pytest.approx(theirs._sigma, rel=1e-9)  # (11)
        sigmas.add(mine.sigma)
    assert n_clipped > 2
    assert len(sigmas) == 15


# ---- searches


def searched(
    wins: Callable[[int, Search], bool], n_clients: int, rounds: int, strategy: Strategy, start: float, sigma: float
) -> list[list[Search]]:
    """Returns all clients' searches after each round."""
    rng, covariance = np.random.default_rng(5), np.eye(N)
    now = [new_search((start,) * N, sigma, covariance, strategy, rng) for _ in range(n_clients)]
    history = [now]
    for _ in range(rounds):
        now = [after_trial(search, wins(k, search), strategy) for k, search in enumerate(now)]
        covariance = covariance_of(now, N, strategy)
        now = [with_child(search, covariance, strategy, rng) for search in now]
        history.append(now)
    return history


def test_on_the_sphere_the_mean_squared_distance_falls_twentyfold() -> None:
    """Each client has its own target; 16 clients, 10 genes, 150 rounds."""
    targets = np.random.default_rng(1).uniform(0.3, 0.9, (16, N))

    def apart(k: int, x: tuple[float, ...]) -> float:
        return float(((np.asarray(x) - targets[k]) ** 2).sum())

    history = searched(lambda k, s: apart(k, s.child) < apart(k, s.parent), 16, 150, Strategy(), 0.2, 0.1)
    first, last = (np.mean([apart(k, s.parent) for k, s in enumerate(now)]) for now in (history[0], history[-1]))
    assert last < first / 20


def test_with_random_winners_the_path_is_normal_and_the_step_size_does_not_drift() -> None:
    """C stays I: |p| is as long as a normal vector, and the logarithm of s stays around 0."""
    coin = np.random.default_rng(2)
    strategy = Strategy(max_gene=1e9, max_sigma=1e9, adapted=False)
    history = searched(lambda k, s: bool(coin.random() < 0.5), 60, 120, strategy, 5e8, 0.1)
    lengths = [np.linalg.norm(s.path) for now in history[60:] for s in now]
    assert np.mean(lengths) == pytest.approx(expected_length(N), rel=0.02)
    drift = np.log([s.sigma / 0.1 for s in history[-1]])
    assert abs(drift.mean()) < 4 * drift.std() / np.sqrt(60)
    assert 0.1 < drift.std() < 3
