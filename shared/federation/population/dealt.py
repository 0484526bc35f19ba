"""Populations in which each sample is dealt to one client, a device or an edge."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.core.errors import BadInput
from shared.core.number_sets import EMPTY, NumberSet
from shared.federation.labels import Labels
from shared.federation.population.devices import Devices, edge_link, held_out_of, run_seeds, stream, test_clients_of
from shared.federation.population.population import Population
from shared.federation.population.seats import NOTHING, EdgeSeat, Seat, SeatSamples
from shared.federation.test_sets import (
    ClientSamples,
    Indices,
    Samples,
    TestPart,
    TestSet,
    deal_tests,
    deal_tests_by_domain,
    deal_tests_by_writer,
    test_sets,
)
from shared.simulation import Availability, Link, Profile, part_of
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.partition import ByDomainPartition, ByWriterPartition, DealtPartition, partition


@dataclass(frozen=True)
class _Seats:
    """The seats of a run by their samples; those after the devices' are edges' own workers."""

    devices: Devices
    samples: Sequence[SeatSamples]
    held_out: NumberSet
    n_workers: int
    worker: Profile

    def __len__(self) -> int:
        return len(self.samples) + self.n_workers

    def seat(self, number: int) -> Seat:
        """A seat by its number."""
        if number >= len(self.samples):
            edge = number - len(self.samples)
            return Seat(number, edge, "worker", self.worker, SeatSamples.of(NOTHING.indices))
        return self.devices.seat(number, "held_out" if number in self.held_out else "train", self.samples[number])


def dealt_population(
    spec: ExperimentSpec,
    how: DealtPartition,
    data: Dataset,
    labels: Labels,
    train: Indices,
    test: Indices,
    everything: Samples,
    devices: Devices,
) -> Population:
    """A population among whose clients the samples at these positions are dealt.

    Raises:
        BadInput: there are fewer samples than clients, or the partition is impossible.
    """
    clients = _edge_clients if spec.client == "edge" else _device_clients
    seats, edges, apart = clients(spec, how, data, labels, train, test, devices)
    owners = [edge.samples for edge in edges] if spec.client == "edge" else seats.samples
    named: list[ClientSamples] = [
        (f"{spec.client}-{number}", own.train, own.test)
        for number, own in enumerate(owners)
        if number not in seats.held_out
    ]
    workers = np.arange(seats.n_workers, dtype=np.int32)
    return Population(
        home_edges=np.concatenate([devices.home_edges, workers]),
        n_devices=len(seats.samples),
        held_out=seats.held_out,
        test_clients=test_clients_of(spec),
        make=seats.seat,
        edges=tuple(edges),
        latencies=devices.latencies,
        test=everything,
        labels=labels,
        most_samples=max(sum(s.n_train for s in seats.samples), sum(len(edge.train) for edge in edges)),
        digest=_digest(data, seats, edges, everything),
        test_sets=test_sets(spec, data, named, test),
        validation=apart,
    )


def _device_clients(
    spec: ExperimentSpec,
    how: DealtPartition,
    data: Dataset,
    labels: Labels,
    train: Indices,
    test: Indices,
    devices: Devices,
) -> tuple[_Seats, list[EdgeSeat], TestSet]:
    home_edges = devices.home_edges.tolist()
    parts = _dealt(spec, how, data, labels, train, home_edges)
    held_out = held_out_of(spec)
    trains, tests = _split_tests(spec, data, labels, parts, test)
    trains, apart = _without_validation(spec, trains, held_out)
    samples = [
        SeatSamples.of(part[:0], Samples("train", part))
        if number in held_out
        else SeatSamples.of(trains[number], tests[number])
        for number, part in enumerate(parts)
    ]
    own: list[list[Samples]] = [[] for _ in range(spec.num_edges or 1)]
    for number, edge in enumerate(home_edges):
        if number not in held_out:
            own[edge].append(tests[number])
    edges = [_edge_of(own[number], number, edge_link(spec, number)) for number in range(len(own))]
    return _Seats(devices, samples, held_out, 0, Profile()), edges, apart


def _edge_of(tests: Sequence[Samples], number: int, link: Link) -> EdgeSeat:
    indices = np.sort(np.concatenate([NOTHING.indices, *(one.indices for one in tests)]))
    found = Samples(tests[0].part if tests else "test", indices)
    return EdgeSeat(number, SeatSamples.of(NOTHING.indices, found), link)


def _edge_clients(
    spec: ExperimentSpec,
    how: DealtPartition,
    data: Dataset,
    labels: Labels,
    train: Indices,
    test: Indices,
    devices: Devices,
) -> tuple[_Seats, list[EdgeSeat], TestSet]:
    """The edges own the parts; an edge's devices have collected its training samples in even shares."""
    if spec.held_out_fraction:
        raise BadInput("held-out devices need client: device", field="held_out_fraction")
    n_edges, n_devices = spec.num_edges or 1, len(devices.home_edges)
    parts = _dealt(spec, how, data, labels, train, list(range(n_edges)))
    if n_devices > len(train):
        raise BadInput(f"{n_devices} devices for {len(train)} training samples", field="num_devices")
    trains, tests = _split_tests(spec, data, labels, parts, test)
    trains, apart = _without_validation(spec, trains, EMPTY)
    collected = [SeatSamples.of(NOTHING.indices)] * n_devices
    for edge, own in enumerate(trains):
        numbers = np.flatnonzero(devices.home_edges == edge)
        order = stream(spec, f"collected {edge}").permutation(own)
        for number, share in zip(numbers, np.array_split(order, max(len(numbers), 1)), strict=False):
            collected[number] = SeatSamples.of(np.sort(share))
    edges = [EdgeSeat(n, SeatSamples.of(trains[n], tests[n]), edge_link(spec, n)) for n in range(n_edges)]
    worker = Profile(name="edge", compute_sps=spec.edge_link.worker_sps)
    return _Seats(devices, collected, EMPTY, n_edges if spec.edge_worker else 0, worker), edges, apart


def _dealt(
    spec: ExperimentSpec,
    how: DealtPartition,
    data: Dataset,
    labels: Labels,
    train: Indices,
    edges: Sequence[int],
) -> list[Indices]:
    """The samples of each client, whose edges are given."""
    groups = None if data.train_group is None else np.asarray(data.train_group)[train]
    parts = partition(
        how,
        np.asarray(labels.train)[train],
        len(edges),
        stream(spec, "partition"),
        edges=edges,
        writers=groups,
        domains=None if data.train_domain is None else np.asarray(data.train_domain)[train],
        domain_names=data.domains,
        n_classes=labels.n,
    )
    return [train[part] for part in parts]


def _split_tests(
    spec: ExperimentSpec, data: Dataset, labels: Labels, parts: list[Indices], test: Indices
) -> tuple[list[Indices], list[Samples]]:
    """Cuts each client's test samples from its own part, or deals out the data set's test samples."""
    if spec.test_fraction is None:
        dealt = _deal_tests(spec, data, labels, parts, test)
        return parts, [Samples("test", indices) for indices in dealt]
    rng = stream(spec, "split")
    trains, tests = [], []
    for number, part in enumerate(parts):
        order = rng.permutation(part)
        share = part_of(spec.test_fraction, number, run_seeds(spec, f"client {number}"), "test fraction")
        n_test = min(round(share * len(part)), max(len(part) - 1, 0))
        tests.append(Samples("train", np.sort(order[:n_test])))
        trains.append(np.sort(order[n_test:]))
    return trains, tests


def _without_validation(
    spec: ExperimentSpec, trains: list[Indices], held_out: NumberSet
) -> tuple[list[Indices], TestSet]:
    """The training samples of each client without its validation part, and these parts, drawn by seed.

    A client keeps a training sample; one that never trains has no validation part.
    """
    how = spec.validation
    if how is None or how.of == "server":
        return trains, ()
    rng, kept, parts = stream(spec, "validation"), list[Indices](), list[TestPart]()
    for number, own in enumerate(trains):
        n = 0 if number in held_out else min(round(how.fraction * len(own)), max(len(own) - 1, 0))
        apart = np.sort(rng.permutation(own)[:n])
        kept.append(own[~np.isin(own, apart)])
        parts += [TestPart(f"{spec.client}-{number}", Samples("train", apart))] if n else []
    if not parts:
        cause = f"{how.fraction:g} of the samples of each of {len(trains)} clients is none"
        raise BadInput(f"validation.fraction: {cause}", field="validation.fraction")
    return kept, tuple(parts)


def _deal_tests(
    spec: ExperimentSpec, data: Dataset, labels: Labels, parts: list[Indices], test: Indices
) -> list[Indices]:
    """Deals the data set's test samples as the training samples were dealt: by domain, by writer or by label."""
    rng = stream(spec, "test")
    if isinstance(spec.partition, ByDomainPartition):
        return deal_tests_by_domain(data, labels, parts, test, rng)
    if isinstance(spec.partition, ByWriterPartition) and (of := deal_tests_by_writer(data, parts, test)) is not None:
        return of
    return deal_tests(labels, parts, test, rng)


def _digest(data: Dataset, seats: _Seats, edges: Sequence[EdgeSeat], test: Samples) -> str:
    sha = hashlib.sha256(data.digest.encode())

    def add(what: str, train: Indices, tests: Samples) -> None:
        sha.update(f"{what} {len(train)} {len(tests)} {tests.part}\n".encode())
        sha.update(train.tobytes() + tests.indices.tobytes())

    known: dict[int, tuple[Availability, str]] = {}  # a trace is long, and one object for all seats that follow it
    for seat in map(seats.seat, range(len(seats))):
        own, when = seat.profile.model_dump_json(exclude={"availability"}), seat.profile.availability
        if id(when) not in known:
            known[id(when)] = when, when.model_dump_json()
        end = f"{own} {known[id(when)][1]} {seat.latency_s}"
        add(f"seat {seat.number} {seat.home_edge} {seat.role} {end}", seat.train, seat.test)
    for edge in edges:
        add(f"home {edge.number} {edge.link.model_dump_json()}", edge.train, edge.test)
    add("all", test.indices[:0], test)
    return sha.hexdigest()
