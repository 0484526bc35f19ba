"""Reading specs by name, from files and mappings, with overrides and the files of traces and devices that they name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.core import parsing
from shared.core.errors import BadInput
from shared.core.formatting import did_you_mean
from shared.core.records import Record
from shared.simulation import parse_traces
from shared.simulation.device_file import MAX_CHARS as MAX_DEVICE_CHARS
from shared.spec import catalogue
from shared.spec.experiment import ExperimentSpec
from shared.spec.run import RunSpec

ALTERNATIVES = (["partition"], ["lr_schedule"])
"""Fields whose own fields depend on their `name`."""
SpecSource = str | os.PathLike[str] | Mapping[str, Any] | ExperimentSpec
"""A spec: the name of an experiment that comes with StrataFL, the path of a YAML or JSON file, its fields, or one that
has been validated. A `Path` is a file, whatever its name."""


def read_spec(source: SpecSource, overrides: Sequence[str] = (), *, check_names: bool = True) -> RunSpec:
    """Read a spec, apply `key=value` overrides (dotted keys, YAML values), validate.

    Without `check_names` the names in it, and what depends on them, are left for another process to check: the
    registries of algorithms, models and data sets load torch, which takes seconds.

    Overrides of names come first, since they replace fields of what had the name before; else their order counts.

    Files of traces and devices are named relative to the spec's file, in a mapping relative to the current folder, and
    so is a file of devices that an override names.

    Raises:
        BadInput: the file cannot be read or is not a mapping, or a field is invalid.
    """
    raw, folder = _fields_of(source)
    own = _device_file(raw)
    for override in sorted(overrides, key=lambda text: not text.partition("=")[0].endswith(".name")):
        override_field(raw, override)
    if "devices" in raw:
        file = _device_file(raw)
        if file.get("path") != own.get("path") and file.get("csv") in (None, own.get("csv")):
            raw["devices"] = _with_rows({**raw["devices"], "file": {**file, "csv": None}}, Path())
        raw["devices"] = _with_traces(_with_rows(raw["devices"], folder), folder)
    if not check_names:
        with suppress(ValidationError):  # which is told in full below
            return RunSpec.model_validate(raw)
    from shared.federation.spec_parser import parse_run_spec

    return parse_run_spec(raw)


def overrides_of(fields: Mapping[str, Any]) -> list[str]:
    """Fields by dotted key as the overrides that the command line takes: `{"algorithm.params.mu": 0.1}`.

    Raises:
        BadInput: a value is none that a spec can have.
    """
    return [f"{key}={written(key, value)}" for key, value in fields.items()]


def written(key: str, value: Any) -> str:
    """A value as JSON, which YAML includes.

    Raises:
        BadInput: the value of `key` is none that JSON can write.
    """
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{key}: {error}", field=key) from None


def _plain(value: Any) -> Any:
    """The value of a record, a path, or a number or array of numpy or torch, as JSON knows it."""
    if isinstance(value, Record):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a spec has no values of type {type(value).__name__}")


def _fields_of(source: SpecSource) -> tuple[dict[str, Any], Path]:
    """The fields of a spec as they were written, and the folder of the files that it names."""
    if isinstance(source, Mapping | ExperimentSpec):
        return json.loads(written("spec", dict(source) if isinstance(source, Mapping) else source)), Path()
    path = file_of(source)
    raw = parsing.load(_text_of(path), str(path))
    if not isinstance(raw, dict):
        raise BadInput(f"{path}: a spec must be a mapping of fields")
    return raw, path.parent


def file_of(source: str | os.PathLike[str]) -> Path:
    """The file of a spec: that of an experiment of StrataFL if the text is its name, else the one at this path.

    Raises:
        BadInput: there is no such file, or the name is that of an experiment and of another file in this folder.
    """
    path, known = Path(source), catalogue.files()
    if isinstance(source, str) and source in known:
        for own in (path, path.with_suffix(".yaml")):
            if own.is_file() and own.read_bytes() != known[source].read_bytes():
                words = f"{source!r} is an experiment that comes with StrataFL, and a file of that name is here"
                raise BadInput(f"{words}: write ./{own} for the file, or rename it to run the experiment")
        return known[source]
    if isinstance(source, str):
        try:
            path.stat()
        except FileNotFoundError:
            hint = _nearest(path, known)
            raise BadInput(f"{path}: no such file, and no experiment has that name{hint}") from None
        except (OSError, ValueError):  # which reading it reports
            pass
    return path


def _nearest(path: Path, known: Mapping[str, Path]) -> str:
    """What to write in the place of a path at which nothing is."""
    if path.stem in known:
        return f"; `{path.stem}` names the experiment that comes with StrataFL"
    return f"{did_you_mean(path.stem, known) or ';'} `strata experiments` lists them"


def _with_traces(raw: Any, folder: Path) -> Any:
    """The `devices` of a spec with the contents of its trace files, since a spec is sent without its files."""
    if isinstance(raw, list):
        return [_with_traces(item, folder) for item in raw]
    if not isinstance(raw, dict):
        return raw
    if raw.get("name") != "trace" or not isinstance(raw.get("file"), str):
        return {key: _with_traces(value, folder) for key, value in raw.items()}
    path = folder / raw["file"]
    try:
        traces = parse_traces(_text_of(path))
    except ValueError as error:
        raise BadInput(f"{path}: {error}", field="devices") from None
    return {**{key: value for key, value in raw.items() if key != "file"}, "traces": traces}


def _device_file(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The file of measured devices that the fields of a spec name, as a mapping; empty if they name none."""
    devices = raw.get("devices")
    named = devices.get("file") if isinstance(devices, dict) else None
    return {"path": named} if isinstance(named, str) else named if isinstance(named, dict) else {}


def _with_rows(devices: Any, folder: Path) -> Any:
    """The `devices` of a spec with the text of the file of measured devices that it names."""
    named = _device_file({"devices": devices})
    if not isinstance(named.get("path"), str) or named.get("csv") is not None:
        return devices
    path = folder / named["path"]
    text = _text_of(path, "devices.file: ")
    if len(text) > MAX_DEVICE_CHARS:
        cause = f"{path} has {len(text):,} characters; it travels with the spec, which holds {MAX_DEVICE_CHARS:,} of it"
        raise BadInput(f"{cause}: take some rows, or `strata profiles fit` them", field="devices.file")
    return {**devices, "file": {**named, "csv": text}}


def _text_of(path: Path, field: str = "") -> str:
    """The text of a file of limited length, which `field` names.

    Raises:
        BadInput: the file cannot be read, is not text, or is too long.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read(parsing.MAX_CHARS + 1)
    except OSError as error:
        raise BadInput(f"{field}{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{field}{path} is not text in UTF-8: {error}") from None
    if len(text) > parsing.MAX_CHARS:
        raise BadInput(f"{path} is too long: the limit is {parsing.MAX_CHARS} characters")
    return text


def override_field(raw: dict[str, Any], override: str) -> None:
    """Set one dotted key of a raw spec: `partition.alpha=0.1`.

    Another name removes what belongs to the one before: fields of a partition or schedule, an algorithm's parameters.
    """
    key, found, text = override.partition("=")
    if not found or not key:
        raise BadInput(f"an override has the form key=value, not {override!r}")
    value = parsing.load(text, f"the value of {key}")
    *parents, last = key.split(".")
    place = raw
    for parent in parents:
        below = place.get(parent)
        if isinstance(below, str):
            below = {"path" if parent == "file" else "name": below}
        place[parent] = place = dict(below) if isinstance(below, dict) else {}
    if last == "name" and place.get("name") != value:
        for field in [*place] if parents in ALTERNATIVES else ["params"] if parents else []:
            place.pop(field, None)
    place[last] = value
