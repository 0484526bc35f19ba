"""Data that devices collect during a run: `arrival_rate`.

By each round a device has the first samples of its part in a seeded order, so that samples only come and never go.
How many depends on the round alone, not on which devices train.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from shared.core.randomness import stream_seed
from shared.federation.population import Indices, Seat, SeatSamples
from shared.spec.experiment import ExperimentSpec


def n_arrived(spec: ExperimentSpec, n: int, round_no: int) -> int:
    """How many of its n samples a device has collected by a 1-based round; at most n."""
    rate = spec.arrival_rate
    if rate is None or round_no < 1:
        return n
    a_round = rate * n if rate <= 1 else rate
    return min(math.ceil(round_no * a_round - 1e-9), n)


def collected(spec: ExperimentSpec, seat: Seat, round_no: int) -> Seat:
    """The seat with the training samples that it has collected by a 1-based round."""
    return first_samples(spec, seat, n_arrived(spec, seat.n_train, round_no))


def first_samples(spec: ExperimentSpec, seat: Seat, n: int) -> Seat:
    """The seat with the first n training samples that it collects."""
    if n == seat.n_train:
        return seat

    def arrived() -> Indices:
        rng = np.random.default_rng(stream_seed(f"{spec.seed}|population|arrival {seat.number}"))
        return np.sort(rng.permutation(seat.train)[:n])

    return replace(seat, samples=SeatSamples(n, seat.n_test, arrived, lambda: seat.test))
