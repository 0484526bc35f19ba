"""What has to hold of an algorithm before it runs: its hooks, its records, its parameters."""

from __future__ import annotations

import json
from typing import Any, get_args, get_origin

from shared.core.errors import BadInput
from shared.core.records import Nothing, Record
from shared.federation.aggregation import check_update_type
from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    CloudHooks,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    GlobalModel,
    OwnBuffers,
    Update,
)
from strata.checks.monitor import require

FEDAVG: dict[str, list[type[Record]]] = {
    "cloud": [GlobalModel, Broadcast, Update],
    "edge": [EdgeModel, Broadcast, Update, Broadcast, Nothing],
    "device": [OwnBuffers, Broadcast, Update, Nothing],
}
"""The records of a hook class that names none."""
KINDS: dict[str, type[Any]] = {"cloud": CloudHooks, "edge": EdgeHooks, "device": DeviceHooks}


def hooks_keep_no_state(algorithm: Algorithm) -> None:
    """Hooks are of their tier's class, have no attributes, and define only hooks and private helpers."""
    for tier, kind in KINDS.items():
        hooks = getattr(algorithm, tier)
        require(isinstance(hooks, kind), f"{tier}: {type(hooks).__name__} does not derive from {kind.__name__}")
        require(vars(hooks) == {}, f"{tier}: {type(hooks).__name__} keeps attributes: {', '.join(vars(hooks))}")
        own = {key: value for key, value in vars(type(hooks)).items() if not key.startswith("__")}
        values = [key for key, value in own.items() if not callable(value)]
        require(not values, f"{tier}: {type(hooks).__name__} has attributes: {', '.join(values)}")
        unknown = [key for key in own if key not in vars(kind) and not key.startswith("_")]
        require(not unknown, f"{tier}: nobody calls {', '.join(unknown)}: is a hook's name misspelt?")


def hooks_name_their_records(algorithm: Algorithm) -> None:
    """The records that a hook class names as type arguments are those that the algorithm declares."""
    down, up, report = algorithm.broadcast, algorithm.update, algorithm.report or Nothing
    declared = {
        "cloud": [algorithm.cloud_state, down, up],
        "edge": [algorithm.edge_state, down, up, algorithm.message_type, report],
        "device": [algorithm.device_state, algorithm.message_type, up, report],
    }
    for tier, records in declared.items():
        hooks = getattr(algorithm, tier)
        named = _records_named(hooks, KINDS[tier]) or FEDAVG[tier]
        says, has = (", ".join(kind.__name__ for kind in kinds) for kinds in (named, records))
        cause = f"{tier}: {type(hooks).__name__} names {says}; the algorithm declares {has}"
        require(type(hooks) is KINDS[tier] or named == records, cause)


def _records_named(hooks: object, kind: type[Any]) -> list[Any]:
    """The record types that a hook class names as type arguments; none for FedAvg's own hooks."""
    generic = (base for owner in type(hooks).__mro__ for base in vars(owner).get("__orig_bases__", ()))
    bases = [base for base in generic if get_origin(base) is kind]
    named: dict[Any, Any] = dict(zip(kind.__parameters__, get_args(bases[0]), strict=True)) if bases else {}
    return [named.get(found, found) for found in named.values()]


def fields_of_updates_have_rules(algorithm: Algorithm) -> None:
    """Every field of an update has an aggregation rule."""
    try:
        check_update_type(algorithm.update)
    except TypeError as error:
        require(False, str(error))


def parameters_have_defaults(algorithm: Algorithm) -> None:
    """Parameters have a JSON schema and defaults, and an unknown one is refused with its path."""
    schema = json.loads(json.dumps(algorithm.params.model_json_schema()))
    required = ", ".join(schema.get("required", ()))
    require(not required, f"parameters without a default: {required}")
    require(schema.get("additionalProperties") is False, "unknown parameters are accepted: derive them from Record")
    require(algorithm.parse_params({}) == algorithm.params(), "parameters of an empty mapping are not the defaults")
    try:
        algorithm.parse_params({"nonsense": 1})
    except BadInput as error:
        require(error.field == "algorithm.params.nonsense", f"an unknown parameter is refused as {error.field}")
    else:
        require(False, "an unknown parameter is accepted")
