"""The seats of a run (virtual clients), which are made when they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, overload

import numpy as np

from shared.core.number_sets import Numbers, NumberSet
from shared.federation.test_sets import Indices, Samples
from shared.simulation import Link, Profile, catalogue_profile

Role = Literal["train", "held_out", "worker"]
NOTHING = Samples("test", np.empty(0, np.int64))


class SeatSamples:
    """The samples of one client, drawn when they are looked at; their numbers are known before.

    Args:
        n_train, n_test: numbers of training and test samples.
        train: returns positions of the training samples in the data set's training images.
        test: returns the test samples.
    """

    def __init__(self, n_train: int, n_test: int, train: Callable[[], Indices], test: Callable[[], Samples]) -> None:
        self.n_train, self.n_test, self._train, self._test = n_train, n_test, train, test

    @classmethod
    def of(cls, train: Indices, test: Samples = NOTHING) -> SeatSamples:
        """Samples that are known already."""
        return cls(len(train), len(test), lambda: train, lambda: test)

    @cached_property
    def train(self) -> Indices:
        """Positions of the training samples."""
        return self._train()

    @cached_property
    def test(self) -> Samples:
        """The test samples."""
        return self._test()


@dataclass(frozen=True)
class Seat:
    """A virtual client's place in a run, hosted by an agent. An edge's own worker has a seat too, after the devices'.

    Attributes:
        number: from 0.
        home_edge: number of the edge that it belongs to.
        role: `train`; `held_out` only evaluates; `worker` is an edge's own worker.
        profile: what the device can do.
        samples: its data.
        latency_s: seconds one way to each edge, its own link included; empty for an edge's worker, which has no link.
    """

    number: int
    home_edge: int
    role: Role
    profile: Profile
    samples: SeatSamples
    latency_s: tuple[float, ...] = ()

    @property
    def train(self) -> Indices:
        """Positions of its training samples in the data set's training images."""
        return self.samples.train

    @property
    def test(self) -> Samples:
        """Its test samples."""
        return self.samples.test

    @property
    def n_train(self) -> int:
        """Number of its training samples."""
        return self.samples.n_train

    @property
    def n_test(self) -> int:
        """Number of its test samples."""
        return self.samples.n_test

    def latency_to(self, edge: int | None) -> float:
        """Seconds one way to an edge; 0 without a link."""
        return self.latency_s[edge] if self.latency_s and edge is not None else 0.0


def seated(seat: Seat, profile: str) -> Seat:
    """The seat with the named profile of the agent that hosts it, for `devices.profile: agent`."""
    found, own = catalogue_profile(profile), seat.profile
    found = found if own.slowdown == 1 else found.slowed(own.slowdown, own.slows)
    return replace(seat, profile=found, latency_s=tuple(found.latency_s + s for s in seat.latency_s))


@dataclass(frozen=True)
class EdgeSeat:
    """An edge's place in a run: its samples and its link to the cloud.

    Attributes:
        number: from 0.
        samples: its own training samples, if edges are the clients; the test samples of its clients.
        link: to the cloud.
    """

    number: int
    samples: SeatSamples
    link: Link

    @property
    def train(self) -> Indices:
        """Positions of its training samples in the data set's training images."""
        return self.samples.train

    @property
    def test(self) -> Samples:
        """Its test samples."""
        return self.samples.test


class Seats(Sequence[Seat]):
    """Some seats, in the order of their numbers.

    Args:
        numbers: of the seats.
        make: returns a seat by its number.
        by_home: returns numbers of seats by home edge.
    """

    def __init__(
        self, numbers: NumberSet, make: Callable[[int], Seat], by_home: Callable[[NumberSet], Mapping[int, NumberSet]]
    ) -> None:
        self.numbers, self.make, self._by_home = numbers, make, by_home

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Seat: ...
    @overload
    def __getitem__(self, index: slice) -> Seats: ...
    def __getitem__(self, index: int | slice) -> Seat | Seats:
        if isinstance(index, slice):
            return self.among(NumberSet(self.numbers.array[index]))
        return self.make(int(self.numbers.array[index]))

    def __iter__(self) -> Iterator[Seat]:
        return map(self.make, self.numbers)

    def among(self, numbers: NumberSet) -> Seats:
        """Those of these numbers, which must be seats of this sequence."""
        return Seats(numbers, self.make, self._by_home)

    def by_home_edge(self) -> dict[int, Seats]:
        """The seats of each home edge."""
        return {edge: self.among(numbers) for edge, numbers in self._by_home(self.numbers).items()}


def numbers_of(seats: Sequence[Seat]) -> Numbers:
    """The numbers of some seats, (n,), none of which is made for it."""
    return seats.numbers.array if isinstance(seats, Seats) else np.array([seat.number for seat in seats], np.int64)


def by_home_edge(seats: Sequence[Seat]) -> Mapping[int, Sequence[Seat]]:
    """The seats of each home edge, in the order of the edges."""
    if isinstance(seats, Seats):
        return seats.by_home_edge()
    return {edge: [s for s in seats if s.home_edge == edge] for edge in sorted({seat.home_edge for seat in seats})}
