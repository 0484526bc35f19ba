"""Load: the free share of a device's compute over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from shared.core.errors import BadInput
from shared.core.randomness import stream_seed
from shared.federation.spec_parser import parse_spec
from shared.simulation import Load, NoLoad, Seeds, free_share
from shared.simulation.load import WALK_STEPS, RandomWalk, Sinus, Steps


def streams_of(seat: int) -> Seeds:
    return lambda purpose: stream_seed(f"seat {seat}|{purpose}")


CURVES: list[Load] = [
    Sinus(period_s=100, low=0.2, high=0.8),
    Steps(every_s=10, low=0.2, high=0.8),
    RandomWalk(every_s=10, step=0.3, low=0.2, high=0.8),
]
BY_NAME = pytest.mark.parametrize("load", CURVES, ids=[load.name for load in CURVES])


def test_without_load_all_compute_is_free() -> None:
    assert [free_share(NoLoad(), at_s, streams_of(0)) for at_s in (0, 1e9)] == [1.0, 1.0]


@BY_NAME
def test_free_share_stays_between_its_bounds_differs_by_seat_and_follows_from_the_instant(load: Load) -> None:
    instants = [float(at_s) for at_s in range(0, 3000, 7)]
    found = [free_share(load, at_s, streams_of(3)) for at_s in instants]
    assert all(0.2 <= share <= 0.8 for share in found)
    assert max(found) - min(found) > 0.3
    assert found == [free_share(load, at_s, streams_of(3)) for at_s in reversed(instants)][::-1]
    assert found != [free_share(load, at_s, streams_of(4)) for at_s in instants]


def test_sine_load_repeats_after_its_period() -> None:
    load = CURVES[0]
    assert free_share(load, 1030.0, streams_of(1)) == pytest.approx(free_share(load, 30.0, streams_of(1)))
    means = np.mean([free_share(load, at_s, streams_of(1)) for at_s in np.arange(0, 100, 0.1)])
    assert means == pytest.approx(0.5, abs=1e-3)


def test_steps_hold_for_their_time_and_are_uniform() -> None:
    load = CURVES[1]
    assert (
        free_share(load, 10.0, streams_of(0))
        == free_share(load, 19.9, streams_of(0))
        != free_share(load, 20.0, streams_of(0))
    )
    drawn = [free_share(load, 10.0 * n, streams_of(0)) for n in range(2000)]
    assert stats.kstest(drawn, stats.uniform(0.2, 0.6).cdf).pvalue > 1e-3


def test_random_walk_has_bounded_steps() -> None:
    load = CURVES[2]
    walk = [free_share(load, 10.0 * n, streams_of(0)) for n in range(WALK_STEPS)]
    apart = np.abs(np.diff(walk))
    assert apart.max() <= 0.3
    assert apart.max() > 0.2


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"name": "steps", "low": 0.9, "high": 0.1}, "low 0.9 is above high 0.1"),
        ({"name": "step"}, "did you mean"),
        ({"name": "sinus", "high": 1.5}, "at most 1"),
    ],
)
def test_an_invalid_load_is_refused(load: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_spec({"devices": {"profile": {"load": load}}})
