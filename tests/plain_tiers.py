"""Both tiers in plain Python, in each of their modes: events on lists, softmax regression in numpy.

Each device takes one step of gradient descent on all its samples. Visits and flights take constant times, so the
reference shares no code with the product but the division of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shared.federation.experiment import Experiment
from tests.cloud_server.runs.plain_flights import weight_of
from tests.edge_server.rounds.plain_devices import Counted, by_samples
from tests.shared.algorithms.plain_linear import Array, gradient_of, joined, timed

LATENCIES = (0.1871, 0.3137, 0.4759, 0.8363, 1.6943, 0.6211)
EDGE_LATENCIES = (0.3651, 0.8353)
DELAY_S = 0.5
SPEEDS = {
    **timed(DELAY_S, [[latency] * len(EDGE_LATENCIES) for latency in LATENCIES], EDGE_LATENCIES),
    "association": "balanced",
}


@dataclass(frozen=True)
class Visit:
    """A device's visit: when it began and ends, the order or version to which it belongs, and its model."""

    seat: int
    sent_s: float
    ends_s: float
    of: int
    base: Array

    @classmethod
    def begun(cls, seat: int, now_s: float, of: int, base: Array) -> Visit:
        return cls(seat, now_s, now_s + (2 * LATENCIES[seat] + DELAY_S), of, base)


@dataclass(frozen=True)
class Answer:
    """What an edge makes of an order: the sum of weighted steps, its samples, and the visits that counted.

    Attributes:
        rows: for each of these: edge round, seat, staleness in versions, seconds until it counted None if late.
    """

    edge: int
    version: int
    ordered_s: float
    ends_s: float
    total: Array
    n: int
    rows: list[tuple[int, int, int, float | None]]


@dataclass
class Edge:
    """An edge between its orders.

    Attributes:
        visits: in flight, of asynchronous devices; late ones, of semi-synchronous ones.
    """

    experiment: Experiment
    number: int
    version: int = 0
    visits: dict[int, Visit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seats = self.experiment.population.seats
        self.samples = {seat.number: seat.n_train for seat in seats if seat.home_edge == self.number}
        self.spec, self.devices = self.experiment.spec, self.experiment.spec.sync.devices

    def answer(self, order: int, version: int, model: Array, ordered_s: float) -> Answer:
        """Works on an order: `edge_rounds` versions of the edge's model, or the sum of one."""
        received, latency = model, EDGE_LATENCIES[self.number]
        now_s = ordered_s + latency
        self.rows: list[tuple[int, int, int, float | None]] = []
        n_late = 0
        for edge_round in range(self.spec.edge_rounds_at(self.number)):
            self.version += 1
            if self.devices.asynchronous:
                counted, now_s = self._buffer(edge_round, model, now_s)
            else:
                counted, now_s, late = self._wave(order, edge_round, model, now_s)
                n_late += late
            model = by_samples(model, counted)
        total: Array = np.sum([weight * n * step for weight, n, _, step in counted], axis=0)
        n = sum(n for _, n, _, _ in counted)
        if self.spec.most_edge_rounds > 1:
            n = n_late + sum(self.samples[seat] for seat in {row[1] for row in self.rows if row[3] is not None})
            total = n * (model - received)
        return Answer(self.number, version, ordered_s, now_s + latency, total, n, self.rows)

    def _counted(self, visit: Visit, weight: float = 1.0, n: int | None = None) -> Counted:
        step = -self.spec.lr * gradient_of(self.experiment, visit.seat)(visit.base)
        return weight, self.samples[visit.seat] if n is None else n, visit.base, step

    def _buffer(self, edge_round: int, model: Array, now_s: float) -> tuple[list[Counted], float]:
        counted: list[Counted] = []
        while len(counted) < self.devices.buffer:  # type: ignore[operator]
            for seat in self.samples.keys() - self.visits.keys():
                self.visits[seat] = Visit.begun(seat, now_s, self.version, model)
            visit = self.visits.pop(min(self.visits, key=lambda seat: (self.visits[seat].ends_s, seat)))
            now_s, tau = max(now_s, visit.ends_s), self.version - visit.of
            counted.append(self._counted(visit, weight_of(self.devices.staleness.model_dump(), tau)))
            self.rows.append((edge_round, visit.seat, tau, now_s - visit.sent_s))
        return counted, now_s

    def _wave(self, order: int, edge_round: int, model: Array, now_s: float) -> tuple[list[Counted], float, int]:
        """A wave until its last answer or its deadline: the updates that count, its end, the weight of late ones."""
        free = [seat for seat in self.samples if seat not in self.visits or self.visits[seat].ends_s <= now_s]
        begun = [Visit.begun(seat, now_s, order, model) for seat in free]
        closes_s = now_s + (self.spec.round_deadline_s or math.inf)
        in_time = [visit for visit in begun if visit.ends_s <= closes_s]
        ends_s = closes_s if len(in_time) < len(begun) else max(visit.ends_s for visit in begun)
        arrived = [late for _, late in sorted(self.visits.items()) if late.ends_s <= ends_s and late.of < order]
        counted = [self._counted(visit) for visit in in_time]
        self.rows += [(edge_round, visit.seat, 0, 0.0) for visit in in_time]
        n_late = 0
        for late in arrived:
            del self.visits[late.seat]
            n = max(round(self.samples[late.seat] * self.spec.staleness_discount ** (order - late.of)), 1)
            counted.append(self._counted(late, n=n))
            self.rows.append((edge_round, late.seat, 0, None))
            n_late += n
        self.visits |= {visit.seat: visit for visit in begun if visit.ends_s > closes_s}
        return counted, ends_s, n_late


@dataclass
class Tiers:
    """A cloud and its edges: `run` makes the versions of a run.

    Attributes:
        made: for each version its instant and the answers that counted, each with its staleness.
    """

    experiment: Experiment
    made: list[tuple[float, list[tuple[Answer, int]]]] = field(default_factory=list)
    in_air: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model, self.now_s = joined(self.experiment.initial), 0.0
        self.sync = self.experiment.spec.sync.edges
        self.edges = [Edge(self.experiment, number) for number in range(len(EDGE_LATENCIES))]
        self.orders = [0] * len(self.edges)

    def run(self) -> Tiers:
        for version in range(self.experiment.spec.num_rounds):
            landed = self._landed(version)
            weights = [weight_of(self.sync.staleness.model_dump(), version - one.version) for one in landed]
            step: Array = np.sum([w * one.total for w, one in zip(weights, landed, strict=True)], axis=0)
            self.model = self.model + step / sum(one.n for one in landed)
            self.made.append((self.now_s, [(one, version - one.version) for one in landed]))
        return self

    def _landed(self, version: int) -> Sequence[Answer]:
        """The answers of a version: all; those until the first to an order of this round; or the first."""
        self._order(version)
        landed: list[Answer] = []
        while True:
            first = min(self.in_air, key=lambda one: (one.ends_s, one.edge))
            self.in_air.remove(first)
            self.now_s = first.ends_s
            landed.append(first)
            if self.sync.asynchronous or not self.in_air:
                return landed
            if self.sync.mode == "semi_synchronous" and first.version == version:
                return landed

    def _order(self, version: int) -> None:
        for number in {0, 1} - {one.edge for one in self.in_air}:
            order = self.orders[number] = max(version, self.orders[number]) + 1
            self.in_air.append(self.edges[number].answer(order, version, self.model, self.now_s))
