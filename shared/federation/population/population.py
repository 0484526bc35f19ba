"""The population of a run: its seats, edges and test sets, derived from spec and data.

A pure function: every tier derives the same population, and messages carry only its digest. Which agent hosts a seat
is decided elsewhere, since it must not change a result. Seats are made when they are looked at: a run may have a
million of which a round visits a thousand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from shared.core.number_sets import EMPTY, NumberSet
from shared.federation.labels import Labels
from shared.federation.population.latencies import Latencies
from shared.federation.population.seats import EdgeSeat, Role, Seat, Seats
from shared.federation.test_sets import Samples, TestPart, TestSet
from shared.training.partition import label_counts

KEPT_SEATS = 2**15
"""Seats that a process keeps once they are made."""
KEPT_GROUPS = 16
"""Sets of seats that stay divided by home edge."""


@dataclass(frozen=True)
class Population:
    """All seats and edges of a run, and its test sets.

    Attributes:
        home_edges: by seat, the number of its edge, (n_seats,).
        n_devices: number of the devices' seats; those of edges' own workers follow them.
        held_out: the seats that only evaluate.
        test_clients: the devices' seats that are tested where all seats would be.
        make: makes a seat by its number.
        edges: of the run.
        latencies: between devices and edges.
        test: the global test set.
        labels: those by which samples are divided.
        most_samples: training samples of all seats, or, where edges are the clients, of all edges.
        digest: sha256 over what determines all of this.
        test_sets: further test sets by name: `union` is that of all clients together; for data with domains, each
            domain's by its name, and `unseen`, that of the domains that no client has.
        validation: the samples by which rounds are compared, which neither train nor test a model.
    """

    home_edges: npt.NDArray[np.int32]
    n_devices: int
    held_out: NumberSet
    test_clients: NumberSet
    make: Callable[[int], Seat]
    edges: tuple[EdgeSeat, ...]
    latencies: Latencies
    test: Samples
    labels: Labels
    most_samples: int
    digest: str
    test_sets: Mapping[str, TestSet] = field(default_factory=dict)
    validation: TestSet = ()

    @cached_property
    def seats(self) -> Seats:
        """All seats."""
        kept = lru_cache(maxsize=KEPT_SEATS)(self.make)
        return self.seats_of(NumberSet(np.arange(len(self.home_edges))), kept)

    def seats_of(self, numbers: NumberSet, make: Callable[[int], Seat]) -> Seats:
        """Some seats, as `make` returns them by their numbers."""
        return Seats(numbers, make, self._by_home)

    def seat(self, number: int) -> Seat:
        """A seat by its number."""
        return self.seats.make(number)

    def prepare(self, numbers: Iterable[int]) -> None:
        """Makes seats and draws their training samples; in the midst of trainings it would take three times as long."""
        for number in islice(numbers, KEPT_SEATS):
            _ = self.seat(number).train

    def role(self, number: int) -> Role:
        """The role of a seat, which need not be made for it."""
        return "worker" if number >= self.n_devices else "held_out" if number in self.held_out else "train"

    @property
    def n_training(self) -> int:
        """Number of the devices' seats that train."""
        return self.n_devices - len(self.held_out)

    @property
    def tests_all(self) -> bool:
        """Whether all devices are tested where all would be."""
        return len(self.test_clients) == self.n_devices

    @cached_property
    def _groups(self) -> deque[tuple[NumberSet, dict[int, NumberSet]]]:
        return deque(maxlen=KEPT_GROUPS)

    def _by_home(self, numbers: NumberSet) -> dict[int, NumberSet]:
        """Numbers of seats by home edge; of the same set, computed once."""
        known = next((groups for of, groups in self._groups if of is numbers), None)
        if known is None:
            homes = self.home_edges[numbers.array]
            edges = np.unique(homes).tolist()
            known = {edge: numbers if len(edges) == 1 else numbers.where(homes == edge) for edge in edges}
            self._groups.append((numbers, known))
        return known

    def at(self, edge: int) -> Seats:
        """The seats that belong to an edge."""
        return self.seats.among(self._by_home(self.seats.numbers).get(edge, EMPTY))

    def workers_of(self, edge: int) -> NumberSet:
        """The seat of an edge's own worker, if it has one."""
        return NumberSet(
            [number for number in range(self.n_devices, len(self.seats)) if self.home_edges[number] == edge]
        )

    def tests_at(self, edge: EdgeSeat, client: Literal["device", "edge"]) -> TestSet:
        """The test samples of an edge's clients, by client: of the edge itself or of its devices that are tested."""
        if client == "edge":
            return (TestPart(f"edge-{edge.number}", edge.test),)
        own = self.at(edge.number)
        tested = own.among(own.numbers & (self.test_clients - self.held_out))
        return tuple(TestPart(f"device-{seat.number}", seat.test) for seat in tested if seat.n_test)

    @property
    def total_samples(self) -> int:
        """An upper bound of the weight of any sum of updates: from samples, or from one for each seat."""
        return max(self.most_samples, len(self.seats), 1)


def counts_of(seats: Sequence[Seat], labels: Labels) -> npt.NDArray[np.int64]:
    """Training samples by seat and label, (n_seats, n_labels)."""
    counts: npt.NDArray[np.int64] = label_counts([seat.train for seat in seats], labels.train, labels.n)
    return counts
