"""A cloud that does not wait for all edges, in plain Python: events on a list, softmax regression in numpy.

Each device takes one step of gradient descent on all its samples, and an edge's flight takes a constant time, so the
reference shares no code with the product but the division of the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shared.federation.experiment import Experiment
from tests.shared.algorithms.plain_linear import Array, gradient_of, joined, timed

LATENCIES = (0.365, 0.835, 1.955)
DELAY_S = 0.5
LASTS = tuple(2 * latency + DELAY_S for latency in LATENCIES)
"""Seconds of a flight by edge: twice its link's latency, and its devices' delay. No two flights end together."""
SPEEDS = timed(DELAY_S, 0, LATENCIES)


@dataclass
class Answer:
    """What an edge's devices learned from a model: by seat, its samples and its step from that model."""

    edge: int
    version: int
    ordered_s: float
    start: Array
    steps: list[tuple[int, Array]]

    @property
    def ends_s(self) -> float:
        return self.ordered_s + LASTS[self.edge]


@dataclass
class Version:
    """A version of the global model: when it was made, and of which answers, as (edge, staleness, seconds)."""

    at_s: float
    answers: list[tuple[int, int, float]]


Combine = Callable[[Array, Sequence[tuple[Answer, float]]], Array]
"""Returns the next model of the present one and of answers with their staleness weights."""


def by_samples(model: Array, answers: Sequence[tuple[Answer, float]]) -> Array:
    """FedAvg: w + sum n_i s_i Delta_i / sum n_i."""
    n = sum(samples for answer, _ in answers for samples, _ in answer.steps)
    return model + sum(weight * samples * step for answer, weight in answers for samples, step in answer.steps) / n


def fedbuff(model: Array, answers: Sequence[tuple[Answer, float]]) -> Array:
    """FedBuff with eta_g = 0.7: w + eta_g / K sum s_i Delta_i."""
    n = sum(len(answer.steps) for answer, _ in answers)
    return model + 0.7 * sum(weight * step for answer, weight in answers for _, step in answer.steps) / n


def fedasync(alpha: float) -> Combine:
    """FedAsync: (1 - alpha s) w + alpha s y, where y is the mean of an edge's models, and of those in the buffer."""

    def combine(model: Array, answers: Sequence[tuple[Answer, float]]) -> Array:
        models = [answer.start + np.mean([step for _, step in answer.steps], axis=0) for answer, _ in answers]
        weights = [weight for _, weight in answers]
        mixed, alpha_t = np.average(models, axis=0, weights=weights), alpha * float(np.mean(weights))
        return (1 - alpha_t) * model + alpha_t * mixed

    return combine


def weight_of(staleness: Mapping[str, Any], tau: int) -> float:
    """The staleness weight, a whole number of steps of 2^-16."""
    weight = 1.0
    if staleness["name"] == "polynomial":
        weight = float((tau + 1) ** -staleness["a"])
    if staleness["name"] == "hinge" and tau > staleness["b"]:
        weight = 1 / (staleness["a"] * (tau - staleness["b"]) + 1)
    return round(weight * 2**16) / 2**16


@dataclass
class Cloud:
    """The reference: `run` makes versions as `sync.edges` says.

    Attributes:
        made: the versions so far.
        in_air: the answers on their way.
    """

    experiment: Experiment
    combine: Combine = by_samples
    made: list[Version] = field(default_factory=list)
    in_air: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = joined(self.experiment.initial)
        self.sync: dict[str, Any] = self.experiment.spec.sync.edges.model_dump()
        self.now_s = 0.0

    def run(self) -> Cloud:
        for _ in range(self.experiment.spec.num_rounds):
            counted = self._buffer() if self.sync["mode"] == "asynchronous" else self._enough()
            weighted = [(one, weight_of(self.sync["staleness"], len(self.made) - one.version)) for one in counted]
            found = [(one.edge, len(self.made) - one.version, LASTS[one.edge]) for one in counted]
            self.model = self.combine(self.model, weighted)
            self.made.append(Version(self.now_s, found))
        return self

    def _order(self) -> None:
        """Orders at all edges that are idle."""
        for edge in {0, 1, 2} - {one.edge for one in self.in_air}:
            seats = [seat for seat in self.experiment.population.seats if seat.home_edge == edge]
            steps = [
                (seat.n_train, -self.experiment.spec.lr * gradient_of(self.experiment, seat.number)(self.model))
                for seat in seats
            ]
            self.in_air.append(Answer(edge, len(self.made), self.now_s, self.model, steps))

    def _land(self, first: Answer) -> Answer:
        self.in_air.remove(first)
        self.now_s = first.ends_s
        return first

    def _first(self) -> Answer:
        return min(self.in_air, key=lambda one: one.ends_s)

    def _buffer(self) -> list[Answer]:
        counted: list[Answer] = []
        while len(counted) < (3 if self.sync["buffer"] == "all" else self.sync["buffer"]):
            self._order()
            counted.append(self._land(self._first()))
        return counted

    def _enough(self) -> list[Answer]:
        counted: list[Answer] = []
        self._order()
        ends_s = self.now_s + (self.sync["deadline_s"] or math.inf)
        while not counted or self._first().ends_s <= ends_s:
            counted.append(self._land(self._first()))
            fresh = sum(one.version == len(self.made) for one in counted)
            if fresh == self.sync["wanted"] or all(one.version < len(self.made) for one in self.in_air):
                return counted
        self.now_s = max(ends_s, self.now_s)
        return counted
