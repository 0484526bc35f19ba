"""Finds algorithms by name: the built-in ones of `shared.algorithms`, and those of plug-ins (`shared.core.plugins`).

A built-in module `<name>.py` without a leading underscore holds `ALGORITHM`. A module may have `PICTURES`, if its
algorithm has pictures of its own.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from shared.core.errors import BadInput
from shared.core.plugins import Kind
from shared.core.records import Record
from shared.federation.hooks import Algorithm
from shared.spec.experiment import ExperimentSpec

PACKAGE = "shared.algorithms"


@cache
def _built_in() -> Mapping[str, str]:
    """The modules of the built-in algorithms by name."""
    found = pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)
    return {module.name: f"{PACKAGE}.{module.name}" for module in found if not module.name.startswith("_")}


@cache
def _load(name: str) -> Algorithm:
    module = importlib.import_module(_built_in()[name])
    algorithm = getattr(module, "ALGORITHM", None)
    if not isinstance(algorithm, Algorithm) or algorithm.name != name:
        raise BadInput(f"{module.__name__}.ALGORITHM is not an Algorithm with the module's name")
    return algorithm


ALGORITHMS: Kind[Algorithm] = Kind(Algorithm, "algorithm", "algorithm.name", _built_in, _load)


def load_algorithm(name: str, field: str = "algorithm.name") -> Algorithm:
    """The algorithm that this field of a spec names. An error inside its module is raised unchanged.

    Raises:
        UnknownName: listing the known names.
        BadInput: a built-in module defines no algorithm of its name, or a plug-in is not as it should be.
    """
    return ALGORITHMS.get(name, field)


def pictures_of_algorithm(name: str) -> Callable[..., Any] | None:
    """`PICTURES` of an algorithm's module, a `shared.plots.algorithm_pictures.Pictures`; None where it defines none.

    Raises:
        UnknownName, BadInput: as `load_algorithm` does; `PICTURES` cannot be called.
    """
    load_algorithm(name)
    module = _module_of(name)
    pictures: Any = getattr(module, "PICTURES", None)
    if pictures is not None and not callable(pictures):
        why = "it must be a function from a run's history to pictures"
        raise BadInput(f"{module.__name__}.PICTURES cannot be called: {why}")
    found: Callable[..., Any] | None = pictures
    return found


def _module_of(name: str) -> ModuleType:
    plugged = ALGORITHMS.plugged()
    return plugged[name].module if name in plugged else importlib.import_module(_built_in()[name])


def all_algorithms() -> dict[str, Algorithm]:
    """Every algorithm by name, sorted."""
    return ALGORITHMS.all()


def load_local(spec: ExperimentSpec) -> tuple[Algorithm, Record]:
    """The algorithm whose objective devices minimise, and its parameters: `algorithm.local`, else the spec's own.

    Raises:
        BadInput: `local` names an algorithm without an objective, or the spec's own algorithm has one itself.
    """
    own, local = load_algorithm(spec.algorithm.name), spec.algorithm.local
    if local is None:
        return own, own.parse_params(spec.algorithm.params)
    found, field = load_algorithm(local.name, "algorithm.local.name"), "algorithm.local"
    if found.objective is None:
        raise BadInput(f"{field}: {local.name} has no local objective", field=field)
    if own.objective is not None or own.own_objective(own.parse_params(spec.algorithm.params)):
        raise BadInput(f"{field}: {own.name} has a local objective of its own", field=field)
    return found, found.parse_params(local.params, f"{field}.params")


def total_rounds(spec: ExperimentSpec) -> int:
    """The number of rounds of all phases of the spec's algorithm."""
    algorithm = load_algorithm(spec.algorithm.name)
    return sum(phase.num_rounds for phase in algorithm.phases(spec, algorithm.parse_params(spec.algorithm.params)))
