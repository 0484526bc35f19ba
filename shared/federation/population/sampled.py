"""Populations in which each device draws its own samples (`partition: sampled`), so that there can be a million."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from shared.core.errors import BadInput
from shared.federation.labels import Labels
from shared.federation.population.devices import Devices, edge_link, held_out_of, run_seeds, stream, test_clients_of
from shared.federation.population.population import Population
from shared.federation.population.seats import NOTHING, EdgeSeat, Seat, SeatSamples
from shared.federation.test_sets import Indices, Samples, test_sets
from shared.simulation import part_of
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.partition import ClassPools, SampledPartition

MOST_SAMPLES = 2**30
"""Most samples of all devices together; the steps of exact sums are then 2^-16, those of fewer are finer."""
RECIPE = frozenset(
    {"seed", "data", "partition", "num_devices", "max_devices", "num_edges", "association", "devices", "edge_link"}
    | {"held_out_fraction", "test_fraction", "test_clients", "test_on", "validation"}
)
"""The fields of a spec from which seats and test sets follow."""


class _Sampler:
    """Makes the seats; those of one spec and data set are the same whatever their number."""

    def __init__(
        self,
        spec: ExperimentSpec,
        partition: SampledPartition,
        labels: Labels,
        train: Indices,
        test: Indices,
        devices: Devices,
    ) -> None:
        self.spec, self.partition, self.devices = spec, partition, devices
        self.train = ClassPools(train, np.asarray(labels.train)[train], labels.n)
        self.test = ClassPools(test, np.asarray(labels.test)[test], labels.n)
        self.held_out = held_out_of(spec)
        proportional = max(round(partition.samples * len(test) / len(train)), 1)
        self.n_test = min(proportional, len(test)) if partition.test_samples is None else partition.test_samples
        for pools, n, field in ((self.train, partition.samples, "samples"), (self.test, self.n_test, "test_samples")):
            if n > len(pools):
                raise BadInput(f"{n} samples for each device, there are {len(pools)}", field=f"partition.{field}")

    def seat(self, number: int) -> Seat:
        """A seat by its number."""
        n, n_test, fraction = self.partition.samples, self.n_test, self.spec.test_fraction
        if number in self.held_out:
            samples = SeatSamples(0, n, lambda: NOTHING.indices, lambda: Samples("train", self._own(number)))
            return self.devices.seat(number, "held_out", samples)
        if fraction is None:
            samples = SeatSamples(n, n_test, lambda: self._own(number), lambda: self._tests(number))
            return self.devices.seat(number, "train", samples)
        share = part_of(fraction, number, run_seeds(self.spec, f"client {number}"), "test fraction")
        n_test = min(round(share * n), n - 1)
        samples = SeatSamples(
            n - n_test,
            n_test,
            lambda: np.sort(self._divided(number)[n_test:]),
            lambda: Samples("train", np.sort(self._divided(number)[:n_test])),
        )
        return self.devices.seat(number, "train", samples)

    def _own(self, number: int) -> Indices:
        """The samples that a seat draws from the training images."""
        rng = stream(self.spec, f"seat {number}|samples")
        return self.train.draw(self.partition.samples, self.train.mix(self.partition.alpha, rng), rng)

    def _divided(self, number: int) -> Indices:
        """The same in the order in which they are divided."""
        return stream(self.spec, f"seat {number}|split").permutation(self._own(number))

    def _tests(self, number: int) -> Samples:
        """The samples that it draws from the test images, by the same mix of classes."""
        mix = self.train.mix(self.partition.alpha, stream(self.spec, f"seat {number}|samples"))
        mix = np.where(self.test.sizes > 0, mix, 0.0)
        there = mix if mix.sum() > 0 else self.test.sizes.astype(np.float64)
        rng = stream(self.spec, f"seat {number}|tests")
        return Samples("test", self.test.draw(self.n_test, there / there.sum(), rng))


def sampled_population(
    spec: ExperimentSpec,
    partition: SampledPartition,
    data: Dataset,
    labels: Labels,
    train: Indices,
    test: Indices,
    everything: Samples,
    devices: Devices,
) -> Population:
    """A population of devices that draw from the images at these positions.

    Raises:
        BadInput: a device is to have more samples than there are, or all together too many for exact sums.
    """
    if spec.validation is not None and spec.validation.of == "clients":
        why = "devices of a sampled partition may have the same samples: of: server is a part of the test samples"
        raise BadInput(f"validation.of: {why}", field="validation.of")
    sampler, n_edges = _Sampler(spec, partition, labels, train, test, devices), spec.num_edges or 1
    most_samples = partition.samples * len(devices.home_edges)
    if most_samples > MOST_SAMPLES:
        cause = f"{len(devices.home_edges)} devices of {partition.samples} samples have {most_samples}"
        raise BadInput(f"{cause}: exact sums hold at most {MOST_SAMPLES}", field="partition.samples")

    edges = tuple(EdgeSeat(n, SeatSamples.of(train[:0]), edge_link(spec, n)) for n in range(n_edges))
    recipe = hashlib.sha256(f"sampled|{data.digest}|{spec.model_dump_json(include=set(RECIPE))}".encode())
    recipe.update(train.tobytes() + test.tobytes())
    found = Population(
        home_edges=devices.home_edges,
        n_devices=len(devices.home_edges),
        held_out=sampler.held_out,
        test_clients=test_clients_of(spec),
        make=sampler.seat,
        edges=edges,
        latencies=devices.latencies,
        test=everything,
        labels=labels,
        most_samples=most_samples,
        digest=recipe.hexdigest(),
    )
    if not spec.test_on:
        return found
    tested = found.seats.among(found.test_clients - found.held_out)
    clients = [(f"device-{seat.number}", seat.train, seat.test) for seat in tested]
    return replace(found, test_sets=test_sets(spec, data, clients, test))
