"""The partitioners. Each assigns every sample to exactly one client (`by_domain` may leave samples out).

N = samples, n = clients, K = classes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.core.apportionment import largest_remainder
from shared.core.errors import BadInput
from shared.training.partition.partition_specs import (
    BasePartition,
    BuiltInDealt,
    ByDomainPartition,
    ByGroupPartition,
    ByWriterPartition,
    DirichletPartition,
    EdgeSkewPartition,
    IidPartition,
    ShardsPartition,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Parts = list[Ints]


@dataclass(frozen=True, eq=False)
class PartitionTask:
    """The input of a partitioner; see `partition` for the fields."""

    labels: Ints
    n_clients: int
    n_classes: int
    rng: np.random.Generator
    edges: Sequence[int] | None
    writers: Ints | None
    domains: Ints | None = None
    domain_names: Sequence[str] = ()

    def by_class(self) -> Parts:
        """Returns the samples of each class, shuffled."""
        return [self.rng.permutation(np.flatnonzero(self.labels == k)) for k in range(self.n_classes)]


def assign(spec: BuiltInDealt, task: PartitionTask) -> Parts:
    """Returns each client's samples, in no particular order; a client may have none."""
    match spec:
        case IidPartition():
            return _iid(spec, task)
        case DirichletPartition():
            return _dirichlet(spec, task)
        case ShardsPartition():
            return _shards(spec, task)
        case ByWriterPartition():
            return _by_writer(task)
        case ByGroupPartition():
            return _by_group(spec, task)
        case EdgeSkewPartition():
            return _edge_skew(spec, task)
        case ByDomainPartition():
            return _by_domain(spec, task)


# ---- sizes


def _sizes(spec: BasePartition, task: PartitionTask) -> Ints:
    """Returns the number of samples of each client: one each, the rest in equal or log-normal proportions."""
    weights = np.exp((spec.quantity_skew or 0.0) * task.rng.standard_normal(task.n_clients))
    return 1 + largest_remainder(weights, len(task.labels) - task.n_clients)


def _cut(samples: Ints, sizes: Ints) -> Parts:
    """Returns consecutive pieces of the given sizes."""
    return np.split(samples, np.cumsum(sizes)[:-1])


def _pour(pools: Sequence[Parts]) -> Parts:
    """Returns each client's samples, joined from its pieces of several pools."""
    return [np.concatenate(pieces) for pieces in zip(*pools, strict=True)]


# ---- the partitioners


def _iid(spec: IidPartition, task: PartitionTask) -> Parts:
    sizes = _sizes(spec, task)
    return _cut(task.rng.permutation(len(task.labels)), sizes)


def _dirichlet(spec: DirichletPartition, task: PartitionTask) -> Parts:
    n = len(task.labels)
    if n < task.n_clients * spec.min_samples:
        raise BadInput(
            f"{n} samples are too few for {task.n_clients} clients with min_samples {spec.min_samples} each",
            field="partition.min_samples",
        )
    concentration = np.full(task.n_clients, spec.alpha)
    pools = [_cut(s, largest_remainder(task.rng.dirichlet(concentration), len(s))) for s in task.by_class()]
    return _repair(_pour(pools), task, spec.min_samples)


def _repair(parts: Parts, task: PartitionTask, min_samples: int) -> Parts:
    """Moves single samples from the largest client's largest class until each client has `min_samples`."""
    owned = [list(part) for part in parts]
    while len(min(owned, key=len)) < min_samples:
        giver, taker = max(owned, key=len), min(owned, key=len)
        classes = task.labels[giver]
        most = np.bincount(classes).argmax()
        taker.append(giver.pop(int(np.flatnonzero(classes == most)[-1])))
    return [np.array(part, dtype=np.int64) for part in owned]


def _shards(spec: ShardsPartition, task: PartitionTask) -> Parts:
    each = spec.classes_per_device
    n, n_shards = len(task.labels), task.n_clients * each
    if n_shards > n:
        raise BadInput(
            f"{n} samples cannot be cut into {n_shards} shards ({task.n_clients} clients x {each})",
            field="partition.classes_per_device",
        )
    if each > task.n_classes:
        raise BadInput(
            f"classes_per_device {each} exceeds the {task.n_classes} classes of the data",
            field="partition.classes_per_device",
        )
    pools = task.by_class()
    counts = _shards_of_classes([len(pool) for pool in pools], n_shards, task.n_clients)
    if counts is None:
        pieces = np.array_split(np.concatenate(pools), n_shards)
        dealt = task.rng.permutation(n_shards).reshape(task.n_clients, each)
        return [np.concatenate([pieces[i] for i in row]) for row in dealt]
    shards = [iter(np.array_split(pool, max(m, 1))) for pool, m in zip(pools, counts, strict=True)]
    assigned = _distinct_classes(counts, task.n_clients, each, task.rng)
    return [np.concatenate([next(shards[k]) for k in classes]) for classes in assigned]


def _shards_of_classes(sizes: Sequence[int], n_shards: int, n_clients: int) -> Ints | None:
    """Returns the number of shards of each class, or None if a class's shards cannot all go to different clients.

    The numbers are in proportion to the sizes (Sainte-Lague): at least one for each class that has samples, and at most
    as many as it has samples and as there are clients.
    """
    caps = [min(size, n_clients) for size in sizes]
    counts = np.array([min(cap, 1) for cap in caps], dtype=np.int64)
    if counts.sum() > n_shards or sum(caps) < n_shards:
        return None
    queue = [(-size / 3, k) for k, size in enumerate(sizes) if caps[k] > 1]
    heapq.heapify(queue)
    for _ in range(n_shards - int(counts.sum())):
        _, k = heapq.heappop(queue)
        counts[k] += 1
        if counts[k] < caps[k]:
            heapq.heappush(queue, (-sizes[k] / (2 * counts[k] + 1), k))
    return counts


def _distinct_classes(counts: Ints, n_clients: int, each: int, rng: np.random.Generator) -> list[Ints]:
    """Gives every client `each` shards of different classes, at random.

    With r clients left and at most r shards left of any class, the next client must take a shard of every class with r
    shards left; its other shards are drawn in proportion to the numbers left. Both conditions then hold for r - 1, so
    that the assignment always succeeds.
    """
    left, assigned = counts.copy(), []
    for r in range(n_clients, 0, -1):
        forced = np.flatnonzero(left == r)
        free = np.where(left == r, 0, left).astype(np.float64)
        n_free = each - len(forced)
        drawn = rng.choice(len(left), n_free, replace=False, p=free / free.sum()) if n_free else forced[:0]
        classes = np.concatenate([forced, drawn])
        left[classes] -= 1
        assigned.append(classes)
    return [assigned[i] for i in rng.permutation(n_clients)]  # consecutive draws from few classes are alike


def _by_writer(task: PartitionTask) -> Parts:
    if task.writers is None:
        why = (
            "by_writer needs a data set with writers or groups, this one has none; `data.group` names a table's column"
        )
        raise BadInput(why, field="partition.name")
    if task.writers.shape != task.labels.shape:
        raise BadInput(f"{len(task.writers)} writers for {len(task.labels)} samples", field="partition.name")
    order = np.argsort(task.writers, kind="stable")
    _, starts = np.unique(task.writers[order], return_index=True)
    pools = np.split(order, starts[1:])
    if len(pools) < task.n_clients:
        raise BadInput(f"{len(pools)} writers are too few for {task.n_clients} clients", field="partition.name")
    pools = [pools[i] for i in task.rng.permutation(len(pools))]
    owned: list[Parts] = [[] for _ in range(task.n_clients)]
    heap = [(0, client) for client in range(task.n_clients)]
    for pool in sorted(pools, key=len, reverse=True):
        n, client = heapq.heappop(heap)
        owned[client].append(pool)
        heapq.heappush(heap, (n + len(pool), client))
    return [np.concatenate(pieces) for pieces in owned]


def _by_group(spec: ByGroupPartition, task: PartitionTask) -> Parts:
    n_groups, n, n_classes = spec.n_groups, task.n_clients, task.n_classes
    if n_groups > min(n, n_classes):
        raise BadInput(
            f"n_groups {n_groups} exceeds "
            + (f"the {n_classes} classes" if n_groups > n_classes else f"the {n} clients")
            + "; by_group groups classes, the groups of the data are by_writer's",
            field="partition.n_groups",
        )
    pools = task.by_class()
    shares = [round(spec.gamma * len(pool)) for pool in pools]
    rest = np.concatenate([pool[share:] for pool, share in zip(pools, shares, strict=True)])
    parts = [rest[client::n] for client in range(n)]
    for group in range(n_groups):
        clients = [i for i in range(n) if i * n_groups // n == group]
        classes = [k for k in range(n_classes) if k * n_groups // n_classes == group]
        owned = np.concatenate([pools[k][: shares[k]] for k in classes])
        for i, client in enumerate(reversed(clients)):  # reversed: the first clients got the rest's odd samples
            parts[client] = np.concatenate([parts[client], owned[i :: len(clients)]])
    return parts


def _by_domain(spec: ByDomainPartition, task: PartitionTask) -> Parts:
    names = spec.domains or tuple(task.domain_names)
    unknown = [name for name in names if name not in task.domain_names]
    if task.domains is None or unknown:
        known, requested = ", ".join(task.domain_names) or "none", ", ".join(names) or "all"
        raise BadInput(f"by_domain: the domains of this data are {known}; requested: {requested}",
                       field="partition.domains")  # fmt: skip
    if task.n_clients < len(names):
        few = f"{task.n_clients} clients are too few for {len(names)} domains"
        raise BadInput(few, field="partition.domains")
    has = [names[client % len(names)] for client in range(task.n_clients)]
    pools = {
        name: _in_proportion(np.flatnonzero(task.domains == task.domain_names.index(name)), task) for name in names
    }
    most = {name: len(pools[name]) // has.count(name) for name in names}
    each = min(most.values()) if spec.per_client == "smallest" else spec.per_client
    if isinstance(each, int) and each > min(most.values()):
        poorest = min(most, key=lambda name: most[name])
        raise BadInput(f"per_client {each}: the domain {poorest} has only {most[poorest]} samples for each client",
                       field="partition.per_client")  # fmt: skip
    parts: Parts = [np.empty(0, dtype=np.int64)] * task.n_clients
    for name, pool in pools.items():
        clients = [client for client, own in enumerate(has) if own == name]
        cut = np.array_split(pool, len(clients)) if each == "all" else np.split(pool, _ends(each, len(clients)))
        for client, part in zip(clients, cut, strict=False):
            parts[client] = part
    return parts


def _ends(each: int, n: int) -> Ints:
    """Returns the ends of n consecutive pieces of the same size."""
    return each * np.arange(1, n + 1, dtype=np.int64)


def _in_proportion(samples: Ints, task: PartitionTask) -> Ints:
    """Returns samples in a random order in which every consecutive piece has the classes in proportion."""
    labels, position = task.labels[samples], np.empty(len(samples))
    for k in range(task.n_classes):
        of_class = np.flatnonzero(labels == k)
        position[of_class] = (task.rng.permutation(len(of_class)) + task.rng.random()) / max(len(of_class), 1)
    return samples[np.argsort(position, kind="stable")]


def _edge_skew(spec: EdgeSkewPartition, task: PartitionTask) -> Parts:
    if task.edges is None or len(task.edges) != task.n_clients:
        raise BadInput("edge_skew needs to know the edge of each client", field="partition.name")
    sizes, pools = _sizes(spec, task), task.by_class()
    edges, edge_of = np.unique(np.asarray(task.edges), return_inverse=True)
    totals = np.array([len(pool) for pool in pools], dtype=np.int64)
    edge_sizes = np.bincount(edge_of, weights=sizes).astype(np.int64)
    prior = spec.alpha * np.count_nonzero(totals) * totals / totals.sum()
    log_mixes = np.stack([_log_dirichlet(prior, task.rng) for _ in edges])
    counts = _fit(log_mixes, edge_sizes, totals)  # (edges, classes)
    cut = [_cut(pool, counts[:, k]) for k, pool in enumerate(pools)]
    parts: Parts = [np.empty(0, dtype=np.int64)] * task.n_clients
    for edge, samples in enumerate(_pour(cut)):
        clients = np.flatnonzero(edge_of == edge)
        owner = clients[_interleave(sizes[clients])]
        for client in clients:
            parts[client] = samples[owner == client]
    return parts


def _log_dirichlet(concentration: Floats, rng: np.random.Generator) -> Floats:
    """Returns the logarithm of a Dirichlet draw up to a constant; -inf where the concentration is 0.

    With a small concentration most shares would underflow, but their order matters when the draws are fitted. The log
    of a Gamma(a) variable is drawn as the log of a Gamma(a + 1) variable plus log(U) / a.
    """
    present = concentration > 0
    draw = np.log(rng.standard_gamma(concentration + 1))
    power = np.log1p(-rng.random(len(concentration)))
    return np.where(present, draw + power / np.where(present, concentration, 1), -np.inf)


def _fit(log_mixes: Floats, rows: Ints, columns: Ints, n_sweeps: int = 500) -> Ints:
    """Returns integers near the mixes with exactly the given row and column sums, (edges, classes).

    They are fitted by iterative proportional fitting of logarithms and rounded down; the missing units are then added
    one by one to the cell with the largest remainder.
    """
    present = columns > 0
    log_table = log_mixes[:, present]
    log_rows, log_columns = np.log(rows)[:, None], np.log(columns[present])
    for _ in range(n_sweeps):
        log_table = log_table - np.logaddexp.reduce(log_table, axis=0) + log_columns
        log_table = log_table - np.logaddexp.reduce(log_table, axis=1)[:, None] + log_rows
    table = np.zeros(log_mixes.shape)
    table[:, present] = np.exp(log_table)
    table *= columns / np.maximum(table.sum(axis=0), columns.clip(min=1))  # no column above its sum
    counts = np.floor(table * (1 - 1e-12)).astype(np.int64)
    while (missing := rows - counts.sum(axis=1)).any():
        open_cells = np.outer(missing > 0, columns - counts.sum(axis=0) > 0)
        cell = np.unravel_index(np.where(open_cells, table - counts, -np.inf).argmax(), counts.shape)
        counts[cell] += 1
    return counts


def _interleave(sizes: Ints) -> Ints:
    """Returns the client of each sample of a pool sorted by class: every client is spread evenly over the pool."""
    owner: Ints = np.repeat(np.arange(len(sizes)), sizes)
    turn = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    return owner[np.argsort(turn, kind="stable")]
