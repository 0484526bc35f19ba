"""Asynchronous devices of one edge in plain Python: events on a list, softmax regression in numpy.

Each device takes one step of gradient descent on all its samples, and its visits take a constant time, so the reference
shares no code with the product but the division of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shared.federation.experiment import Experiment
from tests.cloud_server.runs.plain_flights import weight_of
from tests.shared.algorithms.plain_linear import Array, gradient_of, joined, timed
from tests.shared.algorithms.test_server_optimizers import Plain

LATENCIES = (0.1871, 0.3137, 0.4759, 0.8363, 1.6943)
DELAY_S = 0.5
LASTS = tuple(2 * latency + DELAY_S for latency in LATENCIES)
"""Seconds of a visit by seat: twice its latency, and the delay. No two visits end together."""
SPEEDS = timed(DELAY_S, [[latency] for latency in LATENCIES], [0])

Counted = tuple[float, int, Array, Array]
"""An update that counts: its staleness weight, its samples, the model that it started from, and its step."""
Combine = Callable[[Array, Sequence[Counted]], Array]
"""Returns the next model of the present one and of the updates in the buffer."""


def by_samples(model: Array, counted: Sequence[Counted]) -> Array:
    """FedAvg: w + sum n_i s_i Delta_i / sum n_i."""
    steps: Array = np.sum([weight * n * step for weight, n, _, step in counted], axis=0)
    return model + steps / sum(n for _, n, _, _ in counted)


def optimised(how: dict[str, Any]) -> Combine:
    """A server optimiser whose pseudo-gradient is FedAvg's step."""
    optimiser = Plain(how)

    def combine(model: Array, counted: Sequence[Counted]) -> Array:
        moved: Array = optimiser(by_samples(model, counted) - model)
        return model + moved

    return combine


def fedbuff(rate: float) -> Combine:
    """FedBuff: w + eta_g / K sum s_i Delta_i."""

    def combine(model: Array, counted: Sequence[Counted]) -> Array:
        total: Array = np.mean([weight * step for weight, _, _, step in counted], axis=0)
        return model + rate * total

    return combine


def fedasync(alpha: float) -> Combine:
    """FedAsync with a buffer of 1: x + alpha_t (x_base + Delta - x)."""

    def combine(model: Array, counted: Sequence[Counted]) -> Array:
        ((weight, _, base, step),) = counted
        return model + alpha * weight * (base + step - model)

    return combine


@dataclass
class Devices:
    """The reference: `run` makes the versions of a run in which each round is `edge_rounds` of them.

    Attributes:
        rows: by round, for each visit that counted: seat, edge round, staleness in versions, seconds in flight until it
            counted, and the instant.
    """

    experiment: Experiment
    combine: Combine
    rows: list[list[tuple[int, int, int, float, float]]] = field(default_factory=list)

    def run(self) -> Devices:
        spec = self.experiment.spec
        sync, self.model, now_s, version = spec.sync.devices, joined(self.experiment.initial), 0.0, 0
        staleness = sync.staleness.model_dump()
        n = len(LATENCIES) if sync.buffer == "all" else sync.buffer
        in_air: dict[int, tuple[float, float, int, Array]] = {}  # by seat: end, dispatch, version, model
        for _ in range(spec.num_rounds):
            self.rows.append([])
            for edge_round in range(spec.most_edge_rounds):
                version += 1
                counted: list[Counted] = []
                while len(counted) < n:
                    for seat in range(len(LATENCIES)):
                        in_air.setdefault(seat, (now_s + LASTS[seat], now_s, version, self.model))
                    seat = min(in_air, key=lambda one: (in_air[one][0], one))
                    now_s, sent_s, of, base = in_air.pop(seat)
                    step = -spec.lr * gradient_of(self.experiment, seat)(base)
                    samples = self.experiment.population.seats[seat].n_train
                    counted.append((weight_of(staleness, version - of), samples, base, step))
                    self.rows[-1].append((seat, edge_round, version - of, now_s - sent_s, now_s))
                self.model = self.combine(self.model, counted)
        return self
