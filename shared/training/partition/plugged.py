"""Partitioners of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.core.errors import BadInput
from shared.core.plugins import Kind, Value
from shared.core.user_code import user_code
from shared.training.partition.partition_specs import BUILT_IN, PluggedPartition
from shared.training.partition.partitioners import PartitionTask, Parts


@dataclass(frozen=True, kw_only=True)
class Partitioner(Value):
    """A way to divide samples among clients.

    Attributes:
        assign: returns, given the task and the parameters, the positions of each client's samples, each sample with at
            most one client. It draws from the task's generator alone.
    """

    assign: Callable[[PartitionTask, Any], Parts]


def _built_in(name: str) -> Value:
    return Value(name=name, description=(BUILT_IN[name].__doc__ or "").partition("\n")[0], params=BUILT_IN[name])


def _names() -> Mapping[str, Any]:
    return BUILT_IN


PARTITIONERS: Kind[Partitioner, Value] = Kind(Partitioner, "partition", "partition.name", _names, _built_in)


def check_plugged(spec: PluggedPartition) -> None:
    """Checks name and parameters of a partition that is no built-in one.

    Raises:
        UnknownName, BadInput: naming the field.
    """
    PARTITIONERS.get(spec.name).parse(spec.params, "partition")


def assign_plugged(spec: PluggedPartition, task: PartitionTask) -> Parts:
    """Returns each client's samples by the plug-in's partitioner.

    Raises:
        BadInput: it fails, its answer is not a list of positions for each client, or gives a sample to two clients.
    """
    found = PARTITIONERS.plugged()[spec.name].value
    params = found.parse(spec.params, "partition")
    with user_code(f"the partition {spec.name}", "partition.name"):
        given: Any = found.assign(task, params)
    if not isinstance(given, Iterable):
        what = f"{spec.name} returns {given!r:.60}, not a list of positions for each client"
        raise BadInput(what, field="partition.name")
    with user_code(f"the partition {spec.name}", "partition.name"):  # it may be a generator, or hold ragged lists
        parts = [np.asarray(part) for part in given]
    if len(parts) != task.n_clients:
        raise BadInput(f"{spec.name} gives {len(parts)} parts to {task.n_clients} clients", field="partition.name")
    n = len(task.labels)
    for client, part in enumerate(parts):
        if part.ndim != 1 or (len(part) and not np.issubdtype(part.dtype, np.integer)):
            what = "None" if part.dtype == object and part.shape == () else f"{part.dtype} of shape {part.shape}"
            raise BadInput(f"{spec.name}: part {client} is {what}, not a list of positions", field="partition.name")
        if len(part) and not 0 <= part.min() <= part.max() < n:
            span = f"{part.min()}..{part.max()}"
            raise BadInput(f"{spec.name}: part {client} has positions {span} of {n} samples", field="partition.name")
    dealt = np.concatenate([np.empty(0, np.int64), *parts])
    if len(np.unique(dealt)) < len(dealt):
        raise BadInput(f"{spec.name} gives a sample to two clients", field="partition.name")
    return [part.astype(np.int64) for part in parts]
