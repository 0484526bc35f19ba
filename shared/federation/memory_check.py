"""What a spec asks for against what there is: counts, and memory. Refused with the figures, as early as they are known.

The estimate of memory is a lower bound of what one process must hold at a time: of every element of the model

- 8 bytes in each of `num_edges + 2` exact sums (those that arrive, their total, the model), or
- where updates are kept singly, 8 bytes besides, 4 as one arrives and 4 in what is kept: for each device where they are
  held back until admitted, for each client that has an `Each` field of tensors by name, taken to be a whole model;

and what the algorithm says that it gathers of all clients besides (`Footprint.gathers`).

Training, data and what Python takes come on top; so what is refused could not have run, and what is not may still be
too much. Images that are brought to another size are held twice: in pieces, and put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from shared.core.aggregation_rules import PerClient, fields_with
from shared.core.errors import BadInput
from shared.core.records import Record, TensorMap
from shared.runtime.memory import available_bytes

if TYPE_CHECKING:
    from shared.federation.hooks import Algorithm
    from shared.spec.experiment import ExperimentSpec


def n_singly(spec: ExperimentSpec, algorithm: Algorithm) -> int:
    """How many updates are kept singly at a time."""
    devices = spec.max_devices or spec.num_devices or 1
    if algorithm.reports or spec.may_refuse:
        return devices
    kinds = [algorithm.update.model_fields[name].annotation for name in fields_with(algorithm.update, PerClient)]
    clients = spec.num_edges or 1 if spec.client == "edge" else devices
    return clients if any(_holds_models(kind) for kind in kinds) else 0


def _holds_models(annotation: Any) -> bool:
    """Whether values of this type hold tensors by name: as they are, in a map, or in a record."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return any(_holds_models(field.annotation) for field in annotation.model_fields.values())
    return bool(annotation == TensorMap) or any(_holds_models(part) for part in get_args(annotation))


def needed_bytes(spec: ExperimentSpec, algorithm: Algorithm, n_elements: int) -> int:
    """What one process must hold at a time, at least; see the module."""
    return 8 * n_elements * ((spec.num_edges or 1) + 2 + n_singly(spec, algorithm))


def check_memory(
    spec: ExperimentSpec, algorithm: Algorithm, n_elements: int, gathered: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Refuse a run whose models, or what it gathers, cannot fit into this machine's free memory; before they are made.

    Args:
        spec: resolved.
        algorithm: of the spec.
        n_elements: of the model.
        gathered: by the algorithm's parameter that decides it, bytes.

    Raises:
        BadInput: with the figures; naming the parameter where it is what it decides that does not fit.
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
            told = f"{field}: with {value} of {algorithm.name} a process needs at least {needed / 1e9:.1f} GB"
            raise BadInput(f"{told}, {there / 1e9:.1f} GB are free", field=field)
