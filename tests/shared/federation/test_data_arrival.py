"""Data that devices collect during a run."""

from __future__ import annotations

import numpy as np
import pytest

from shared.federation.data_arrival import collected, n_arrived
from shared.federation.population import Seat, SeatSamples
from shared.simulation import Profile
from shared.spec.experiment import ExperimentSpec

PART = np.arange(100, 150, dtype=np.int64)
SEAT = Seat(3, 0, "train", Profile(), SeatSamples.of(PART))


@pytest.mark.parametrize(
    ("rate", "counts"),
    [(None, [50, 50, 50]), (0.3, [15, 30, 45, 50, 50]), (1.0, [50, 50]), (20, [20, 40, 50]), (0.001, [1, 1])],
)
def test_samples_grow_by_round_and_never_exceed_the_part(rate: float | None, counts: list[int]) -> None:
    spec = ExperimentSpec(arrival_rate=rate)
    assert [n_arrived(spec, 50, n + 1) for n in range(len(counts))] == counts


def test_samples_are_rounded_up_but_not_by_the_error_of_their_product() -> None:
    """In floating point, 0.28 * 25 is more than 7."""
    assert [n_arrived(ExperimentSpec(arrival_rate=0.28), 25, n) for n in (1, 2, 3)] == [7, 14, 21]


def test_a_device_keeps_its_samples_in_a_seeded_order_of_its_own() -> None:
    spec = ExperimentSpec(arrival_rate=0.2)
    found = [set(collected(spec, SEAT, n).train.tolist()) for n in (1, 2, 5)]
    assert found[0] < found[1] < found[2] == set(PART.tolist())
    assert found[0] != set(PART[:10].tolist())
    assert found[0] != set(collected(spec.replace(seed=1), SEAT, 1).train.tolist())
    assert (np.diff(collected(spec, SEAT, 1).train) > 0).all()
