"""Data that devices collect while a run goes on: `arrival_rate`.

What a device has by a round is the beginning of its part in a seeded order, so that nothing that it has goes away. It
depends on the round alone, not on who trains.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from shared.core.randomness import stream_seed
from shared.federation.population import Seat
from shared.spec.experiment import ExperimentSpec


def n_collected(spec: ExperimentSpec, n: int, round_no: int) -> int:
    """How many of its n samples a device has in a round, from 1; never more than there are."""
    rate = spec.arrival_rate
    if rate is None or round_no < 1:
        return n
    a_round = rate * n if rate <= 1 else rate
    return min(math.ceil(round_no * a_round - 1e-9), n)


def collected(spec: ExperimentSpec, seat: Seat, round_no: int) -> Seat:
    """A seat with the training samples that it has in a round."""
    n = n_collected(spec, len(seat.train), round_no)
    if n == len(seat.train):
        return seat
    rng = np.random.default_rng(stream_seed(f"{spec.seed}|population|arrival {seat.number}"))
    return replace(seat, train=np.sort(rng.permutation(seat.train)[:n]))
