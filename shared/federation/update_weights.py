"""The weights of updates in sums: by samples or one each, times a staleness weight where a tier waits for few."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shared.core.errors import BadInput
from shared.core.records import Record
from shared.core.update_annotations import Mean, fields_with
from shared.federation.aggregation import FixedPoint, PartialSum
from shared.federation.aggregation.partial_sum import COARSEST
from shared.federation.population import Population
from shared.spec.experiment import ExperimentSpec
from shared.spec.synchronisation import TierSync
from shared.training.data.dataset import Dataset
from shared.training.partition import SampledPartition

TAKEN_OVER = 4
"""Devices of lost edges visit others: where a version is of fewer answers than there are edges, sums have room for so
many times the devices of the edge that has most. Else sums are as fine as those of synchronous tiers."""


def largest_total(spec: ExperimentSpec, population: Population) -> int:
    """The largest weight of any sum of a run, for which its steps are chosen; see `FixedPoint`.

    Where nothing is asynchronous, each seat counts once in a sum, or twice with a late update. Sums of devices' updates
    and of edges' are apart where edges form models, else the cloud adds up the devices' sums.
    """
    devices, edges, n_edges = spec.sync.devices, spec.sync.edges, len(population.edges)
    total = population.total_samples * (2 if spec.late == "next_round" else 1)
    if devices.mode == edges.mode == "synchronous":
        return total
    by_seat = _samples_by_seat(spec, population)
    n_answers = n_buffered(edges, n_edges) if edges.asynchronous else n_edges
    room = TAKEN_OVER if n_answers < n_edges else 1
    of_edge = min(room * int(np.bincount(population.home_edges, weights=by_seat).max(initial=1)), total)
    if not devices.asynchronous:
        return (n_answers * of_edge if edges.asynchronous else total) * edges.staleness.scale
    largest = int(np.bincount(population.home_edges).max(initial=1))
    n = n_buffered(devices, min(room * largest, len(population.home_edges)))
    of_buffer = n * int(by_seat.max(initial=1)) * devices.staleness.scale  # one fast seat may be behind several
    forwarded = spec.most_edge_rounds == 1 and not spec.sends_means
    at_cloud = n_answers * (of_buffer if forwarded else of_edge) * edges.staleness.scale
    return max(total, of_buffer, at_cloud)


def check_weights(spec: ExperimentSpec, data: Dataset, population: Population) -> None:
    """Checks that with `weights: group` each device has one whole group, so that a vote of each is one of each group.

    Raises:
        BadInput: the data have no groups, or a device has several groups or a part of one.
    """
    if spec.weights != "group":
        return
    if data.train_group is None or isinstance(spec.partition, SampledPartition):
        why = "groups that the partition deals (data.group, or the key train_group)"
        raise BadInput(f"weights: group needs {why}; `uniform` counts each device the same", field="weights")
    owner: dict[int, int] = {}
    for seat in (seat for seat in population.seats if seat.role == "train" and seat.n_train):
        own = np.unique(data.train_group[seat.train]).tolist()
        other = next((owner[group] for group in own if group in owner), None)
        if len(own) > 1 or other is not None:
            what = f"{len(own)} groups" if other is None else f"a part of a group of device {other}"
            hint = "`partition: by_writer` with as many devices as groups deals them so"
            why = f"group needs one whole group at each device ({hint}), but device {seat.number} has {what}"
            raise BadInput(f"weights: {why}", field="weights")
        owner |= dict.fromkeys(own, seat.number)


def check_steps(spec: ExperimentSpec, fixed_point: FixedPoint) -> None:
    """Checks that sums are fine enough that are weighted by staleness.

    Raises:
        BadInput: their steps are too large.
    """
    weighted = max(spec.sync.devices.staleness.scale, spec.sync.edges.staleness.scale) > 1
    exponent = fixed_point.exponent("")
    if weighted and exponent < COARSEST:
        why = f"sums weighted by staleness would be rounded to steps of 2^-{exponent}"
        raise BadInput(f"sync: {why}; use a smaller buffer, or constant weights", field="sync")


def _samples_by_seat(spec: ExperimentSpec, population: Population) -> npt.NDArray[np.int64]:
    """Training samples of each seat, at least one, (n_seats,); seats that draw theirs need not be made for it."""
    if isinstance(spec.partition, SampledPartition):
        return np.full(len(population.home_edges), spec.partition.samples)
    return np.maximum([seat.n_train for seat in population.seats], 1)


def n_buffered(sync: TierSync, n_clients: int) -> int:
    """Number of answers of which an asynchronous tier with so many clients makes a version."""
    return max(n_clients, 1) if sync.buffer == "all" else sync.buffer


def mean_staleness_weight(partial_sum: PartialSum, kind: type[Record], steps: int) -> float:
    """The mean staleness weight of the updates in a sum, weighted as its first averaged field; 1 if all are fresh.

    Args:
        partial_sum: of updates of this kind.
        kind: type of the updates.
        steps: the staleness weight 1 in steps.
    """
    for name, how in fields_with(kind, Mean).items():
        for key, part in partial_sum.means.items():
            if key.partition("/")[0] == name:
                n = partial_sum.n_samples if how.weight == "samples" else partial_sum.n_updates
                return part.weight / (n * steps) if n else 1.0
    return 1.0
