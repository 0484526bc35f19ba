"""The devices and links of a population, and its random streams: what does not depend on data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.core.number_sets import NumberSet
from shared.core.randomness import stream_seed
from shared.federation.population.latencies import Latencies
from shared.federation.population.seats import Role, Seat, SeatSamples
from shared.simulation import Link, Profiles, Seeds, drawn_profiles, link_of, profiles_of
from shared.spec.experiment import ExperimentSpec
from shared.training.partition import SampledPartition

TESTED = 1000
"""Devices that are tested where all would be, if the spec does not say how many."""


def stream(spec: ExperimentSpec, purpose: str) -> np.random.Generator:
    """A random stream of the population."""
    return np.random.default_rng(stream_seed(f"{spec.seed}|population|{purpose}"))


def run_seeds(spec: ExperimentSpec, member: str) -> Seeds:
    """Seeds by purpose for the random streams of a seat (`member`: `seat 3`) or an edge (`home 1`) in the whole run."""
    return lambda purpose: stream_seed(f"{spec.seed}|population|{member}|{purpose}")


def device_seeds(spec: ExperimentSpec, number: int) -> Seeds:
    """Seeds by purpose for the random streams of a device in the whole run."""
    return run_seeds(spec, f"seat {number}")


def edge_link(spec: ExperimentSpec, edge: int) -> Link:
    """The link between an edge and the cloud."""
    return link_of(spec.edge_link.link_of_edge(edge), run_seeds(spec, f"home {edge}"))


@dataclass(frozen=True)
class Devices:
    """The devices of a run.

    Attributes:
        home_edges: by seat, the number of its edge, (max_devices,).
        profiles: by seat.
        latencies: to each edge, without the profile's own link.
    """

    home_edges: npt.NDArray[np.int32]
    profiles: Profiles
    latencies: Latencies

    def seat(self, number: int, role: Role, samples: SeatSamples) -> Seat:
        """The seat of a device."""
        profile, row = self.profiles(number), self.latencies.rows(number, 1)[0]
        slowdown = 1.0 if profile.slows == "compute" else profile.slowdown
        far = tuple(profile.latency_s + slowdown * s for s in row.tolist())
        return Seat(number, int(self.home_edges[number]), role, profile, samples, far)


def devices_of(spec: ExperimentSpec) -> Devices:
    """The devices of a resolved spec.

    With `partition: sampled` each seat draws its profile by itself, so that there can be any number of seats;
    otherwise the shares of profiles are exact.
    """
    n_seats, n_edges, latencies = spec.max_devices or 1, spec.num_edges or 1, Latencies(spec)
    numbers = np.arange(n_seats)
    by_latency = spec.association == "latency"
    edges = latencies.nearest(numbers, range(n_edges)) if by_latency else (numbers % n_edges).astype(np.int32)
    if isinstance(spec.partition, SampledPartition):
        profiles = drawn_profiles(spec.devices, lambda member: run_seeds(spec, member))
    else:
        profiles = profiles_of(spec.devices, spec.num_devices or 1, n_seats, lambda member: run_seeds(spec, member))
    return Devices(edges, profiles, latencies)


def held_out_of(spec: ExperimentSpec) -> NumberSet:
    """The seats that never train, of those with which the run starts."""
    among = spec.num_devices or 1
    n = min(round(spec.held_out_fraction * among), among - 1)
    return NumberSet(stream(spec, "held out").choice(among, size=n, replace=False))


def test_clients_of(spec: ExperimentSpec) -> NumberSet:
    """The seats that are tested where all seats would be; a sample is one of those with which the run starts."""
    n, among = spec.test_clients, spec.num_devices or 1
    n = TESTED if n is None else n
    if n == "all" or n >= among:
        return NumberSet(np.arange(spec.max_devices or 1))
    return NumberSet(stream(spec, "test clients").choice(among, size=n, replace=False))
