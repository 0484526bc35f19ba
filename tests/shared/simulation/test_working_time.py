"""The time of work under a load that changes while a task runs, against quadrature in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shared.simulation import MIN_FREE, Load, NoLoad, free_share, working_time
from shared.simulation.load import RandomWalk, Sinus, Steps
from shared.simulation.working_time import work_done_s, working_s
from tests.shared.simulation.test_load import streams_of

LOADS: list[Load] = [
    Sinus(period_s=7, low=0.2, high=0.9),
    Sinus(period_s=7, low=0.0, high=0.5),  # below the least share for a part of each period
    Steps(every_s=1.5, low=0.1, high=1.0),
    Steps(every_s=1.5, low=0.0, high=2e-3),
    RandomWalk(every_s=0.25, step=0.3, low=0.2, high=0.8),  # beyond one stretch of the walk
]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.name} from {load.low:g}")
@pytest.mark.parametrize("begin_s", [0.0, 3.7, 1e4])
def test_the_integral_of_the_free_share_over_the_task_is_its_work(load: Load, begin_s: float) -> None:
    """Midpoint rule; its error is below three thousandths where the share jumps."""
    seeds = streams_of(2)
    for work_s in (0.05, 8.0):
        took_s = working_s(load, begin_s, work_s, seeds)
        n = 5_000 if took_s < 1000 else 40_000
        instants = begin_s + (np.arange(n) + 0.5) * (took_s / n)
        shares = np.maximum([free_share(load, at_s, seeds) for at_s in instants.tolist()], MIN_FREE)
        assert np.mean(shares) * took_s == pytest.approx(work_s, rel=3e-3)
        assert work_done_s(load, begin_s, took_s, seeds) == pytest.approx(work_s, rel=1e-12)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.name} from {load.low:g}")
def test_parts_of_a_task_one_after_another_take_as_long_as_the_whole_and_more_work_takes_longer(load: Load) -> None:
    seeds, parts_s = streams_of(5), (0.3, 1e-6, 2.0)
    ends = [0.7]
    for part_s in parts_s:
        ends.append(ends[-1] + working_s(load, ends[-1], part_s, seeds))
    assert ends[-1] - 0.7 == pytest.approx(working_s(load, 0.7, sum(parts_s), seeds), rel=1e-9)
    times = [working_s(load, 0.7, work_s, seeds) for work_s in np.linspace(0, 5, 40).tolist()]
    assert all(one < other for one, other in itertools.pairwise(times))


@pytest.mark.parametrize("share", [1.0, 0.37, 0.0])
@pytest.mark.parametrize("kind", [Sinus, Steps, RandomWalk])
def test_a_constant_share_is_a_division(kind: type[Sinus | Steps | RandomWalk], share: float) -> None:
    load = kind(low=share, high=share)
    assert working_s(load, 12.0, 3.0, streams_of(0)) == 3.0 / max(share, MIN_FREE)
    assert work_done_s(load, 12.0, 3.0, streams_of(0)) == 3.0 * max(share, MIN_FREE)
    assert working_s(NoLoad(), 12.0, 3.0, streams_of(0)) == work_done_s(NoLoad(), 12.0, 3.0, streams_of(0)) == 3.0


def test_after_the_last_piece_the_mean_share_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_time, "MAX_PIECES", 2)
    load, seeds = Steps(every_s=1, low=0.2, high=1.0), streams_of(1)
    first = free_share(load, 0.0, seeds) + free_share(load, 1.0, seeds)
    assert working_s(load, 0.0, first + 6.0, seeds) == pytest.approx(2 + 6.0 / 0.6)
    assert work_done_s(load, 0.0, 12.0, seeds) == pytest.approx(first + 6.0)
