"""Partitioners: which client owns which training sample.

Every partitioner assigns each sample to exactly one client (`by_domain` may leave samples out), deterministically from
the generator passed in; `sampled` is none of them: there each client draws samples by itself. Nothing here imports
torch. N = samples, n = clients, K = classes.

Sources: `shards` McMahan et al. (AISTATS 2017), section 3; `dirichlet` Yurochkin et al. (ICML 2019), section 4: each
class is divided among the clients by a Dirichlet draw; `quantity_skew` log-normal sizes as in Acar et al. (FedDyn, ICLR
2021); `by_group` the data split of DTPFL, section 3.2; `by_domain` the benchmark of Li et al. (FedBN, ICLR 2021),
section 5.1; `edge_skew` is StrataFL's own. `sampled` draws class mixes as Hsu, Qi, Brown do (Measuring the Effects of
Non-Identical Data Distribution, 2019, section 3), for each client apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.core.errors import BadInput
from shared.training.partition.partition_specs import (
    ByClassPartition,
    ByDomainPartition,
    ByGroupPartition,
    ByWriterPartition,
    DealtPartition,
    DirichletPartition,
    EdgeSkewPartition,
    IidPartition,
    PartitionSpec,
    PluggedPartition,
    SampledPartition,
    ShardsPartition,
)
from shared.training.partition.partitioners import Ints, PartitionTask, Parts, assign
from shared.training.partition.plugged import PARTITIONERS, Partitioner, assign_plugged, check_plugged
from shared.training.partition.sampled import ClassPools

__all__ = [
    "PARTITIONERS",
    "ByClassPartition",
    "ByDomainPartition",
    "ByGroupPartition",
    "ByWriterPartition",
    "ClassPools",
    "DealtPartition",
    "DirichletPartition",
    "EdgeSkewPartition",
    "IidPartition",
    "PartitionSpec",
    "PartitionTask",
    "Partitioner",
    "PluggedPartition",
    "SampledPartition",
    "ShardsPartition",
    "check_plugged",
    "label_counts",
    "partition",
]


def partition(
    spec: DealtPartition,
    labels: npt.NDArray[Any],
    n_clients: int,
    rng: np.random.Generator,
    *,
    edges: Sequence[int] | None = None,
    writers: npt.NDArray[Any] | None = None,
    domains: npt.NDArray[Any] | None = None,
    domain_names: Sequence[str] = (),
    n_classes: int,
) -> Parts:
    """Assigns the samples to the clients.

    Args:
        spec: the partitioner and its parameters.
        labels: (N,), each in 0..n_classes-1.
        n_clients: number of clients.
        rng: the only source of randomness.
        edges: index of each client's edge, (n_clients,); needed by `edge_skew`.
        writers: writer or other group of each sample, (N,); needed by `by_writer`.
        domains: index in `domain_names` of each sample's domain, (N,); needed by `by_domain`.
        domain_names: names of the data's domains.
        n_classes: K.

    Returns:
        For each client the indices of its samples, int64, ascending, at least one.

    Raises:
        BadInput: there are fewer samples than clients, or the partition is impossible; the message has the numbers.
    """
    n = len(labels)
    if n_clients < 1 or n < n_clients:
        raise BadInput(f"{n} samples cannot be divided among {n_clients} clients", field="partition")
    own = np.array(labels, dtype=np.int64)
    if own.min() < 0 or own.max() >= n_classes:
        raise BadInput(f"labels {own.min()}..{own.max()} exceed 0..{n_classes - 1}", field="partition")
    ids = None if writers is None else np.array(writers, dtype=np.int64)
    of = None if domains is None else np.array(domains, dtype=np.int64)
    task = PartitionTask(own, n_clients, n_classes, rng, edges, ids, of, domain_names)
    parts = assign_plugged(spec, task) if isinstance(spec, PluggedPartition) else assign(spec, task)
    empty = [i for i, part in enumerate(parts) if not len(part)]
    if empty:
        raise BadInput(
            f"{spec.name} leaves {len(empty)} of {n_clients} clients without a sample (first: {empty[0]})",
            field="partition",
        )
    return [np.sort(part).astype(np.int64, copy=False) for part in parts]


def label_counts(parts: Sequence[npt.NDArray[Any]], labels: npt.NDArray[Any], n_classes: int) -> Ints:
    """Returns each client's number of samples of each class, (n_clients, n_classes)."""
    counts = [np.bincount(labels[part], minlength=n_classes) for part in parts]
    return np.array(counts, np.int64).reshape(len(parts), n_classes)
