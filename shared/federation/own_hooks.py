"""Hooks of a user's algorithm: what they raise is told with the hook's name, and what they return is checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from shared.core.errors import BadInput
from shared.core.records import Nothing
from shared.core.user_code import user_code
from shared.federation.hooks import (
    Admission,
    Advance,
    Algorithm,
    Begin,
    CloudHooks,
    DeviceHooks,
    EdgeHooks,
    Finish,
    Local,
    Training,
)
from shared.federation.registry import ALGORITHMS

Returns = Mapping[str, type | None]
"""By hook, the type of what it returns; None for one that may return anything."""


def with_checked_hooks(algorithm: Algorithm) -> Algorithm:
    """Returns a user's algorithm whose hooks raise `UserCodeFailed`, and `BadInput` where they return another type.

    One of ours is returned as it is.
    """
    if ALGORITHMS.package_of(algorithm.name) is None:
        return algorithm
    it = algorithm
    cloud: Returns = {"init": it.cloud_state, "broadcast": it.broadcast, "aggregate": it.cloud_state}
    cloud = {**cloud, "models": Mapping, "figures": None, "evaluate": Mapping, "prepare": None}
    edge: Returns = {"init": it.edge_state, "begin": Begin, "select": Collection, "schedule": Mapping}
    edge = {**edge, "dispatch": it.message_type, "admit": Admission, "aggregate": it.edge_state, "advance": Advance}
    edge = {**edge, "finish": Finish, "evaluate": tuple, "forms_model": None, "own_model": None}
    device: Returns = {"init": it.device_state, "local_update": Local, "training": Training, "learned": Local}
    device = {**device, "report": it.report or Nothing, "evaluate": tuple, "personalise": None, "prepare": None}
    return replace(
        algorithm,
        cloud=_checked(it.cloud, CloudHooks, cloud, f"cloud of {it.name}"),
        edge=_checked(it.edge, EdgeHooks, edge, f"edge of {it.name}"),
        device=_checked(it.device, DeviceHooks, device, f"device of {it.name}"),
    )


def _checked(hooks: Any, base: type, returns: Returns, where: str) -> Any:
    """Returns the hooks of a tier as of a class below theirs; those that are not their own stay the default ones."""
    kind = type(hooks)
    found = {name: inspect.getattr_static(kind, name, None) for name in returns}  # a wrapper may have them dynamically
    own = {
        name: _called(hook, returns[name], f"the hook {name} at the {where}")
        for name, hook in found.items()
        if inspect.isfunction(hook) and hook is not getattr(base, name)
    }
    made: Any = object.__new__(type(kind.__name__, (kind,), own))
    vars(made).update(vars(hooks))
    return made


def _called(hook: Callable[..., Any], wanted: type | None, what: str) -> Callable[..., Any]:
    @wraps(hook)
    def call(*args: Any, **named: Any) -> Any:
        with user_code(what, "algorithm.name"):
            found = hook(*args, **named)
        if wanted is not None and not isinstance(found, wanted):
            cause = f"{what} returns {type(found).__name__}, not {wanted.__name__}"
            raise BadInput(cause, field="algorithm.name")
        return found

    return call
