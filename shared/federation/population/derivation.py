"""The population of a spec and a data set.

A pure function: every tier derives the same population, and messages carry only its digest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shared.core.apportionment import largest_remainder
from shared.core.errors import BadInput
from shared.federation.labels import labels_of
from shared.federation.population.dealt import dealt_population
from shared.federation.population.devices import devices_of, stream
from shared.federation.population.population import Population
from shared.federation.population.sampled import sampled_population
from shared.federation.test_sets import Indices, Samples, TestPart, domains_of_clients, is_of
from shared.spec.experiment import ExperimentSpec
from shared.training.data.dataset import Dataset
from shared.training.partition import SampledPartition


def population(spec: ExperimentSpec, data: Dataset) -> Population:
    """Derives the population of a resolved spec.

    Raises:
        BadInput: the spec's numbers of devices, edges or samples do not fit together, or exceed the data.
    """
    if spec.num_edges is None or spec.num_devices is None or spec.max_devices is None:
        raise BadInput("the population of a spec is known once its numbers of devices and edges are")
    check_counts(spec)
    labels = labels_of(spec, data)
    train = _pool(labels.train, spec.data.n_train, stream(spec, "train pool"), "data.n_train")
    test = _pool(labels.test, spec.data.n_test, stream(spec, "test pool"), "data.n_test")
    test, apart = _without_validation(spec, labels.test, test)
    mine = domains_of_clients(spec, data)
    everything = Samples("test", test[is_of(data, test, mine)])
    if isinstance(spec.partition, SampledPartition):
        found = sampled_population(spec, spec.partition, data, labels, train, test, everything, devices_of(spec))
    else:
        found = dealt_population(spec, spec.partition, data, labels, train, test, everything, devices_of(spec))
    of_server = apart[is_of(data, apart, mine)]
    return replace(found, validation=(TestPart(None, Samples("test", of_server)),)) if len(of_server) else found


def _without_validation(spec: ExperimentSpec, labels: npt.NDArray[np.int64], test: Indices) -> tuple[Indices, Indices]:
    """The test samples without the validation part, and that part, drawn by seed with the labels in proportion."""
    if spec.validation is None or spec.validation.of == "clients":
        return test, test[:0]
    n = round(spec.validation.fraction * len(test))
    if not 0 < n < len(test):
        cause = f"{spec.validation.fraction:g} of {len(test)} test samples leaves one of both parts empty"
        raise BadInput(f"validation.fraction: {cause}", field="validation.fraction")
    apart = test[_drawn(np.asarray(labels)[test], n, stream(spec, "validation"))]
    return np.setdiff1d(test, apart), apart


def _pool(labels: npt.NDArray[np.int64], n: int | None, rng: np.random.Generator, field: str) -> Indices:
    """All samples, or n of them drawn by seed with the labels in proportion."""
    if n is None:
        return np.arange(len(labels), dtype=np.int64)
    if n > len(labels):
        raise BadInput(f"{n} samples requested, there are {len(labels)}", field=field)
    return _drawn(np.asarray(labels), n, rng)


def _drawn(values: npt.NDArray[np.int64], n: int, rng: np.random.Generator) -> Indices:
    """Positions of n labels, drawn by seed with the labels in proportion."""
    sizes = largest_remainder(np.bincount(values).astype(np.float64), n)
    chosen = [rng.permutation(np.flatnonzero(values == label))[:size] for label, size in enumerate(sizes)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def check_counts(spec: ExperimentSpec) -> None:
    """Check that the numbers of edges, devices and training samples are possible together, as far as they are fixed.

    Raises:
        BadInput: naming the field and both numbers.
    """
    devices = spec.max_devices or spec.num_devices
    if devices is None:
        return
    if spec.num_edges is not None and spec.num_edges > devices:
        raise BadInput(f"num_edges: {spec.num_edges} edges for {devices} devices", field="num_edges")
    dealt = not isinstance(spec.partition, SampledPartition)
    if spec.data.n_train is not None and dealt and devices > spec.data.n_train:
        many = f"{devices} devices for {spec.data.n_train} training samples"
        raise BadInput(f"data.n_train: {many}", field="data.n_train")
