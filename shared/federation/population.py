"""The population of a run: its seats, edges and test sets, derived from spec and data.

A pure function: every tier derives the same population, and messages carry only its digest. Which agent hosts a seat
is decided elsewhere, since it must not change a result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from shared.core.apportionment import largest_remainder
from shared.core.errors import BadInput
from shared.core.randomness import stream_seed
from shared.federation.test_sets import (
    ClientSamples,
    TestPart,
    TestSet,
    deal_tests,
    deal_tests_by_domain,
    domains_of_clients,
    is_of,
    test_sets,
)
from shared.federation.test_sets import Indices as Indices
from shared.federation.test_sets import Samples as Samples
from shared.simulation import Link, Profile, Seeds, catalogue_profile, link_of, part_of, profiles_of, quantile
from shared.spec.experiment import ExperimentSpec, check_counts
from shared.training.data.dataset import Dataset
from shared.training.partition import ByDomainPartition, label_counts, partition

Role = Literal["train", "held_out", "worker"]


@dataclass(frozen=True)
class Seat:
    """A virtual client's place in a run, hosted by an agent. An edge's own worker has a seat too, after the devices'.

    Attributes:
        number: from 0.
        home_edge: number of the edge that it belongs to.
        role: `train`; `held_out` only evaluates; `worker` is an edge's own worker.
        profile: what the device can do.
        train: positions of its training samples in the data set's training images.
        test: its test samples.
        latency_s: seconds one way to each edge, its own link included; empty for an edge's worker, which has no link.
    """

    number: int
    home_edge: int
    role: Role
    profile: Profile
    train: Indices
    test: Samples
    latency_s: tuple[float, ...] = ()

    def latency_to(self, edge: int | None) -> float:
        """Seconds one way to an edge; 0 without a link."""
        return self.latency_s[edge] if self.latency_s and edge is not None else 0.0


def seated(seat: Seat, profile: str) -> Seat:
    """The seat with the named profile of the agent that hosts it, for `devices.profile: agent`."""
    found = catalogue_profile(profile, seat.profile.slowdown)
    return replace(seat, profile=found, latency_s=tuple(found.latency_s + s for s in seat.latency_s))


@dataclass(frozen=True)
class EdgeSeat:
    """An edge's place in a run: its training samples (if edges are the clients), test samples, link to the cloud."""

    number: int
    train: Indices
    test: Samples
    link: Link


@dataclass(frozen=True)
class Population:
    """All seats and edges of a run, and its test sets.

    Attributes:
        test: the global test set.
        digest: sha256 over seats, edges, global test set and data set.
        test_sets: further test sets by name: `union` is that of all clients together; for data with domains, each
            domain's by its name, and `unseen`, that of the domains that no client has.
    """

    seats: tuple[Seat, ...]
    edges: tuple[EdgeSeat, ...]
    test: Samples
    n_classes: int
    digest: str
    test_sets: Mapping[str, TestSet]

    def at(self, edge: int) -> list[Seat]:
        """The seats that belong to an edge, by number."""
        return [seat for seat in self.seats if seat.home_edge == edge]

    def tests_at(self, edge: EdgeSeat, client: Literal["device", "edge"]) -> TestSet:
        """The test samples of an edge's clients, by client: of the edge itself or of its devices."""
        if client == "edge":
            return (TestPart(f"edge-{edge.number}", edge.test),)
        own = [seat for seat in self.at(edge.number) if seat.role == "train" and len(seat.test)]
        return tuple(TestPart(f"device-{seat.number}", seat.test) for seat in own)

    @property
    def total_samples(self) -> int:
        """An upper bound of the weight of any sum of updates: from samples, or from one for each seat."""
        return max(sum(len(s.train) for s in self.seats), sum(len(e.train) for e in self.edges), len(self.seats), 1)


def population(spec: ExperimentSpec, data: Dataset) -> Population:
    """Derives the population of a resolved spec.

    Raises:
        BadInput: the spec's numbers of devices, edges or samples do not fit together, or exceed the data.
    """
    if spec.num_edges is None or spec.num_devices is None or spec.max_devices is None:
        raise BadInput("the population of a spec is known once its numbers of devices and edges are")
    check_counts(spec)
    train = _pool(data.train_y, spec.data.n_train, _rng(spec, "train pool"), "data.n_train")
    test = _pool(data.test_y, spec.data.n_test, _rng(spec, "test pool"), "data.n_test")
    ends = _devices_of(spec)
    if spec.client == "edge":
        seats, edge_seats = _edge_clients(spec, data, train, test, ends)
    else:
        seats, edge_seats = _device_clients(spec, data, train, test, ends)
    sets = test_sets(spec, data, _clients(spec, seats, edge_seats), test)
    everything = Samples("test", test[is_of(data, test, domains_of_clients(spec, data))])
    digest = _digest(data, seats, edge_seats, everything)
    return Population(tuple(seats), tuple(edge_seats), everything, data.n_classes, digest, sets)


def _clients(spec: ExperimentSpec, seats: Sequence[Seat], edges: Sequence[EdgeSeat]) -> list[ClientSamples]:
    """The clients that train: id, training samples, test samples."""
    if spec.client == "edge":
        return [(f"edge-{edge.number}", edge.train, edge.test) for edge in edges]
    return [(f"device-{seat.number}", seat.train, seat.test) for seat in seats if seat.role == "train"]


def latencies(spec: ExperimentSpec) -> npt.NDArray[np.float64]:
    """Seconds one way from every device seat to every edge, without the seat's own link: (max_devices, num_edges).

    `devices.edge_latency_s` lists them, or is the distribution from which they are drawn, a row for each seat, so that
    more seats do not change the rows of others.
    """
    amount = spec.devices.edge_latency_s
    if isinstance(amount, tuple):
        return np.array(amount, np.float64)
    u = _rng(spec, "latency").random(size=(spec.max_devices or 1, spec.num_edges or 1))
    drawn = [[quantile(amount, value) for value in row] for row in u.tolist()]
    return np.array(drawn, np.float64)


def run_seeds(spec: ExperimentSpec, member: str) -> Seeds:
    """Seeds by purpose for the random streams of a seat (`member`: `seat 3`) or an edge (`home 1`) in the whole run."""
    return lambda purpose: stream_seed(f"{spec.seed}|population|{member}|{purpose}")


def _link(spec: ExperimentSpec, edge: int) -> Link:
    return link_of(spec.edge_link.link_of_edge(edge), run_seeds(spec, f"home {edge}"))


def counts_of(population: Population, data: Dataset) -> npt.NDArray[np.int64]:
    """Training samples by device seat and label, (n_seats, n_classes)."""
    parts = [seat.train for seat in population.seats if seat.role != "worker"]
    counts: npt.NDArray[np.int64] = label_counts(parts, data.train_y, population.n_classes)
    return counts


# ---- how seats are made


@dataclass(frozen=True)
class _Devices:
    """By device seat: its home edge, its profile, its latency in seconds to each edge."""

    edges: list[int]
    profiles: list[Profile]
    latencies: list[tuple[float, ...]]

    def seat(self, number: int, role: Role, train: Indices, test: Samples) -> Seat:
        return Seat(number, self.edges[number], role, self.profiles[number], train, test, self.latencies[number])


def _devices_of(spec: ExperimentSpec) -> _Devices:
    n_seats, n_edges = spec.max_devices or 1, spec.num_edges or 1
    latencies_s = latencies(spec)
    by_latency = spec.association == "latency"
    edges = [int(edge) for edge in latencies_s.argmin(axis=1)] if by_latency else [n % n_edges for n in range(n_seats)]
    profiles = profiles_of(spec.devices, spec.num_devices or 1, n_seats, lambda member: run_seeds(spec, member))
    beyond = [
        tuple(profile.latency_s + s for s in row) for profile, row in zip(profiles, latencies_s.tolist(), strict=True)
    ]
    return _Devices(edges, profiles, beyond)


def _device_clients(
    spec: ExperimentSpec, data: Dataset, train: Indices, test: Indices, ends: _Devices
) -> tuple[list[Seat], list[EdgeSeat]]:
    parts = _dealt(spec, data, train, len(ends.edges), ends.edges)
    held_out = _held_out(spec)
    trains, tests = _split_tests(spec, data, parts, test)
    seats = []
    for number, part in enumerate(parts):
        if number in held_out:
            seats.append(ends.seat(number, "held_out", part[:0], Samples("train", part)))
        else:
            seats.append(ends.seat(number, "train", trains[number], tests[number]))
    return seats, [_edge_of(seats, number, _link(spec, number)) for number in range(spec.num_edges or 1)]


def _edge_of(seats: Sequence[Seat], number: int, link: Link) -> EdgeSeat:
    own = [seat for seat in seats if seat.home_edge == number and seat.role == "train"]
    part = own[0].test.part if own else "test"
    indices = np.sort(np.concatenate([np.empty(0, np.int64), *(seat.test.indices for seat in own)]))
    return EdgeSeat(number, np.empty(0, np.int64), Samples(part, indices), link)


def _edge_clients(
    spec: ExperimentSpec, data: Dataset, train: Indices, test: Indices, ends: _Devices
) -> tuple[list[Seat], list[EdgeSeat]]:
    """The edges own the parts; an edge's devices have collected its training samples in even shares."""
    if spec.held_out_fraction:
        raise BadInput("held-out seats need client: device", field="held_out_fraction")
    n_edges = spec.num_edges or 1
    parts = _dealt(spec, data, train, n_edges, list(range(n_edges)))
    trains, tests = _split_tests(spec, data, parts, test)
    places = [EdgeSeat(number, trains[number], tests[number], _link(spec, number)) for number in range(n_edges)]
    nothing = Samples("test", test[:0])
    collected: dict[int, Indices] = {}
    for place in places:
        numbers = [number for number, edge in enumerate(ends.edges) if edge == place.number]
        order = _rng(spec, f"collected {place.number}").permutation(place.train)
        shares = np.array_split(order, max(len(numbers), 1))
        collected |= {number: np.sort(share) for number, share in zip(numbers, shares, strict=False)}
    n_devices = len(ends.edges)
    seats = [ends.seat(number, "train", collected[number], nothing) for number in range(n_devices)]
    worker = Profile(name="edge", compute_sps=spec.edge_link.worker_sps)
    if spec.edge_worker:
        seats += [Seat(n_devices + n, n, "worker", worker, train[:0], nothing) for n in range(n_edges)]
    return seats, places


def _dealt(spec: ExperimentSpec, data: Dataset, train: Indices, n_clients: int, edges: list[int]) -> list[Indices]:
    writers = None if data.train_writer is None else np.asarray(data.train_writer)[train]
    parts = partition(
        spec.partition,
        np.asarray(data.train_y)[train],
        n_clients,
        _rng(spec, "partition"),
        edges=edges,
        writers=writers,
        domains=None if data.train_domain is None else np.asarray(data.train_domain)[train],
        domain_names=data.domains,
        n_classes=data.n_classes,
    )
    return [train[part] for part in parts]


def _held_out(spec: ExperimentSpec) -> set[int]:
    among = spec.num_devices or 1
    n = min(round(spec.held_out_fraction * among), among - 1)
    return {int(number) for number in _rng(spec, "held out").choice(among, size=n, replace=False)}


def _split_tests(
    spec: ExperimentSpec, data: Dataset, parts: list[Indices], test: Indices
) -> tuple[list[Indices], list[Samples]]:
    """Cuts each client's test samples from its own part, or deals out the data set's test images."""
    if spec.test_fraction is None:
        deal = deal_tests_by_domain if isinstance(spec.partition, ByDomainPartition) else deal_tests
        dealt = deal(data, parts, test, _rng(spec, "test"))
        return parts, [Samples("test", indices) for indices in dealt]
    rng = _rng(spec, "split")
    trains, tests = [], []
    for number, part in enumerate(parts):
        order = rng.permutation(part)
        share = part_of(spec.test_fraction, number, run_seeds(spec, f"client {number}"), "test fraction")
        n_test = min(round(share * len(part)), max(len(part) - 1, 0))
        tests.append(Samples("train", np.sort(order[:n_test])))
        trains.append(np.sort(order[n_test:]))
    return trains, tests


def _pool(labels: npt.NDArray[np.int64], n: int | None, rng: np.random.Generator, field: str) -> Indices:
    """All samples, or n of them drawn by seed with the classes in proportion."""
    if n is None:
        return np.arange(len(labels), dtype=np.int64)
    if n > len(labels):
        raise BadInput(f"{n} samples requested, there are {len(labels)}", field=field)
    values = np.asarray(labels)
    sizes = largest_remainder(np.bincount(values).astype(np.float64), n)
    chosen = [rng.permutation(np.flatnonzero(values == label))[:size] for label, size in enumerate(sizes)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def _rng(spec: ExperimentSpec, purpose: str) -> np.random.Generator:
    return np.random.default_rng(stream_seed(f"{spec.seed}|population|{purpose}"))


def _digest(data: Dataset, seats: Sequence[Seat], edges: Sequence[EdgeSeat], test: Samples) -> str:
    sha = hashlib.sha256(data.digest.encode())

    def add(what: str, train: Indices, tests: Samples) -> None:
        sha.update(f"{what} {len(train)} {len(tests)} {tests.part}\n".encode())
        sha.update(train.tobytes() + tests.indices.tobytes())

    known: dict[int, str] = {}  # a trace is long, and one object for all seats that follow it
    for seat in seats:
        own = seat.profile.model_dump_json(exclude={"availability"})
        when = seat.profile.availability
        known[id(when)] = known.get(id(when)) or when.model_dump_json()
        end = f"{own} {known[id(when)]} {seat.latency_s}"
        add(f"seat {seat.number} {seat.home_edge} {seat.role} {end}", seat.train, seat.test)
    for edge in edges:
        add(f"home {edge.number} {edge.link.model_dump_json()}", edge.train, edge.test)
    add("all", test.indices[:0], test)
    return sha.hexdigest()
