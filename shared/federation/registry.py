"""Finds algorithms by name.

A module `<name>.py` without a leading underscore holds `ALGORITHM`, and `PICTURES` if the algorithm has pictures of
its own. `shared.algorithms` is searched, and the packages that `STRATA_ALGORITHMS` lists (comma-separated, importable).
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from shared.core.errors import BadInput, UnknownName
from shared.core.records import Record
from shared.federation.hooks import Algorithm
from shared.spec.experiment import ExperimentSpec


def load_algorithm(name: str, field: str = "algorithm.name") -> Algorithm:
    """The algorithm that this field of a spec names. An error inside its module is raised unchanged.

    Raises:
        UnknownName: listing the known names.
        BadInput: the module defines no algorithm of its name, or `PICTURES` that cannot be called.
    """
    return _load(_module_of(name, field))[0]


def pictures_of_algorithm(name: str) -> Callable[..., Any] | None:
    """`PICTURES` of an algorithm's module, a `shared.plots.algorithm_pictures.Pictures`; None where it defines none.

    Raises:
        UnknownName, BadInput: as `load_algorithm` does.
    """
    return _load(_module_of(name))[1]


def _module_of(name: str, field: str = "algorithm.name") -> str:
    known = _modules(os.environ.get("STRATA_ALGORITHMS", ""))
    if name not in known:
        raise UnknownName("algorithm", name, list(known), field=field)
    return known[name]


def all_algorithms() -> dict[str, Algorithm]:
    """Every algorithm by name, sorted."""
    return {name: load_algorithm(name) for name in sorted(_modules(os.environ.get("STRATA_ALGORITHMS", "")))}


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


@cache
def _modules(more: str) -> dict[str, str]:
    """Names of modules by algorithm; `more` is the value of `STRATA_ALGORITHMS`."""
    found = {}
    for package in ("shared.algorithms", *(part.strip() for part in more.split(",") if part.strip())):
        for module in pkgutil.iter_modules(_folders(package)):
            if not module.name.startswith("_"):
                found[module.name] = f"{package}.{module.name}"
    return found


def _folders(package: str) -> list[str]:
    """The folders of a package's modules.

    Raises:
        BadInput: there is no such package. An error inside the package is raised unchanged.
    """
    try:
        return list(importlib.import_module(package).__path__)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{package}.".startswith(f"{error.name}."):
            raise
        raise BadInput(f"STRATA_ALGORITHMS: there is no package {package!r} on the Python path") from None
    except (AttributeError, TypeError, ValueError):
        raise BadInput(f"STRATA_ALGORITHMS: {package!r} is not a package (a folder of modules)") from None


@cache
def _load(module: str) -> tuple[Algorithm, Callable[..., Any] | None]:
    """`ALGORITHM` and `PICTURES` of a module; None for pictures that it does not define."""
    found = importlib.import_module(module)
    algorithm, pictures = getattr(found, "ALGORITHM", None), getattr(found, "PICTURES", None)
    if not isinstance(algorithm, Algorithm) or algorithm.name != module.rpartition(".")[2]:
        raise BadInput(f"{module}.ALGORITHM is not an Algorithm with the module's name")
    if pictures is not None and not callable(pictures):
        raise BadInput(f"{module}.PICTURES cannot be called: it must be a function from a run's history to pictures")
    return algorithm, pictures


def total_rounds(spec: ExperimentSpec) -> int:
    """The number of rounds of all phases of the spec's algorithm."""
    algorithm = load_algorithm(spec.algorithm.name)
    return sum(phase.num_rounds for phase in algorithm.phases(spec, algorithm.parse_params(spec.algorithm.params)))
