"""Refuses a run that cannot fit into this machine's memory, with the figures and before a model is made.

The estimate is a lower bound of what one process holds at a time. For every element of the model that is

- 8 bytes in each of `num_edges + 2` exact sums (those that arrive, their total, the model), and
- 8 bytes for each update that is kept singly (4 as it arrives, 4 in the copy kept): one for each selected device if
  updates are held until they are admitted, one for each client if a `PerClient` field holds tensors by name (taken as
  a model);

plus the data that the algorithm gathers from all clients (`Footprint.gathers`, its lower bound).

Training, data and Python itself come on top: a run that is refused could not have run, and one that is accepted may
still be too large.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from shared.core.errors import BadInput
from shared.core.records import Record
from shared.core.tensor_records import TensorMap
from shared.core.update_annotations import PerClient, fields_with
from shared.runtime.host_limits import available_bytes

if TYPE_CHECKING:
    from shared.federation.hooks import Algorithm
    from shared.spec.experiment import ExperimentSpec


def n_unsummed_updates(spec: ExperimentSpec, algorithm: Algorithm) -> int:
    """Number of updates that are kept singly at a time."""
    devices = spec.max_devices or spec.num_devices or 1
    if algorithm.reports or spec.may_refuse:
        return devices if spec.select == "all" else max(round(spec.fraction_train * devices), 1)
    kinds = [algorithm.update.model_fields[name].annotation for name in fields_with(algorithm.update, PerClient)]
    clients = spec.num_edges or 1 if spec.client == "edge" else devices
    return clients if any(_holds_models(kind) for kind in kinds) else 0


def _holds_models(annotation: Any) -> bool:
    """Whether values of this type hold tensors by name: themselves, in a map, or in a record."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return any(_holds_models(field.annotation) for field in annotation.model_fields.values())
    return bool(annotation == TensorMap) or any(_holds_models(part) for part in get_args(annotation))


def needed_bytes(spec: ExperimentSpec, algorithm: Algorithm, n_elements: int) -> int:
    """Bytes that one process must hold at a time, at least; see the module."""
    return 8 * n_elements * ((spec.num_edges or 1) + 2 + n_unsummed_updates(spec, algorithm))


def check_memory(
    spec: ExperimentSpec, algorithm: Algorithm, n_elements: int, gathered: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Refuses a run whose models or gathered data cannot fit into this machine's free memory.

    Args:
        spec: resolved.
        algorithm: of the spec.
        n_elements: number of elements of the model.
        gathered: bytes of gathered data by the algorithm's parameter that determines them.

    Raises:
        BadInput: with the figures; names the parameter if the data that it determines do not fit.
    """
    needed, there = needed_bytes(spec, algorithm, n_elements), available_bytes()
    if there is None:
        return
    if needed > there:
        raise BadInput(
            f"{spec.max_devices or spec.num_devices} devices, {spec.num_edges} edges and a model of {n_elements} "
            f"elements need at least {needed / 1e9:.1f} GB with {algorithm.name}, {there / 1e9:.1f} GB are free",
            field="model.name",
        )
    for name, n_bytes in gathered.items():
        needed += n_bytes
        if needed > there:
            field, value = f"algorithm.params.{name}", getattr(algorithm.parse_params(spec.algorithm.params), name)
            cause = f"{field}: with {value} of {algorithm.name} a process needs at least {needed / 1e9:.1f} GB"
            raise BadInput(f"{cause}, {there / 1e9:.1f} GB are free", field=field)
