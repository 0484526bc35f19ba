"""Data sets of plug-ins: a function returns the arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.core.errors import BadInput
from shared.core.plugins import Kind, Value, digest_of
from shared.core.user_code import user_code
from shared.training.data.dataset import READERS, Dataset, open_unpacked, unpack_once
from shared.training.data.digit_domains import NAME as DIGIT_DOMAINS
from shared.training.data.reading import Read
from shared.training.data.sources import DATASETS, Arrays, DataMalformed
from shared.training.specs import DataSpec


@dataclass(frozen=True, kw_only=True)
class DataSource(Value):
    """A data set.

    Attributes:
        arrays: returns the arrays by key, as an `.npz` holds them (docs/how-to/own-data.md); with `params`, it is
            called with their values. It gives the same arrays in each process, and may give them with names of classes
            and groups (`Read`).
    """

    arrays: Callable[..., Arrays | Read]


def _names() -> Mapping[str, Any]:
    return {**DATASETS, DIGIT_DOMAINS: None}


def _built_in(name: str) -> Value:
    if name == DIGIT_DOMAINS:
        return Value(name=name, description="images of 10 classes")
    known = DATASETS[name]
    return Value(name=name, description=known.description or f"images of {known.n_classes} classes")


DATA_SOURCES: Kind[DataSource, Value] = Kind(DataSource, "data set", "data.name", _names, _built_in)


def open_plugged(spec: DataSpec, cache_dir: Path) -> Dataset:
    """Opens the data set of a plug-in; the first process writes its arrays, all others map them.

    An entry of the cache belongs to one version of the package and one choice of parameters.

    Raises:
        BadInput: a parameter is wrong, or the plug-in fails.
        DataMalformed: an array is missing or wrong.
    """
    found = DATA_SOURCES.plugged()[spec.name]
    source, package = found.value, found.package
    params = source.parse(spec.params, "data.params")
    cache_dir.mkdir(parents=True, exist_ok=True)
    key = (
        f"{READERS}|{package}|{digest_of(package)}|{json.dumps(spec.params, sort_keys=True)}|{spec.kind}|{spec.layout}|"
        f"{spec.standardise_target}"
    )
    folder = cache_dir / f"{spec.name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"

    def read() -> Arrays | Read:
        with user_code(f"the data source {spec.name}", "data.name"):
            found: Any = source.arrays() if params is None else source.arrays(params)
        if not isinstance(found, Read | dict):
            what = f"the data source {spec.name} returns a {type(found).__name__}, not a dictionary of arrays"
            raise BadInput(what, field="data.name")
        return found

    try:
        unpack_once(folder, read, None, spec.kind, spec.layout, standardise=spec.standardise_target, where=spec.name)
    except DataMalformed as error:
        raise DataMalformed(error.detail, field="data.name") from error
    return open_unpacked(spec.name, folder, None)
