"""Reading specs: YAML or JSON files with overrides and the trace files that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.core import parsing
from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_run_spec
from shared.simulation import parse_traces
from shared.spec.run import RunSpec


def read_spec(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """Read a YAML or JSON file, apply `key=value` overrides (dotted keys, YAML values), validate.

    Raises:
        BadInput: the file cannot be read or is not a mapping, or a field is invalid.
    """
    raw = parsing.load(_text_of(path), str(path))
    if not isinstance(raw, dict):
        raise BadInput(f"{path}: a spec must be a mapping of fields")
    for override in overrides:
        override_field(raw, override)
    return parse_run_spec({**raw, "devices": _with_traces(raw["devices"], path.parent)} if "devices" in raw else raw)


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


def _text_of(path: Path) -> str:
    """The text of a file of limited length.

    Raises:
        BadInput: the file cannot be read, is not text, or is too long.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(parsing.MAX_CHARS + 1)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not text: {error}") from None
    if len(text) > parsing.MAX_CHARS:
        raise BadInput(f"{path} is too long: the limit is {parsing.MAX_CHARS} characters")
    return text


def override_field(raw: dict[str, Any], override: str) -> None:
    """Set one dotted key of a raw spec: `partition.alpha=0.1`."""
    key, found, text = override.partition("=")
    if not found or not key:
        raise BadInput(f"an override has the form key=value, not {override!r}")
    value = parsing.load(text, f"the value of {key}")
    *parents, last = key.split(".")
    place = raw
    for parent in parents:
        below = place.get(parent)
        if isinstance(below, str):
            below = {"name": below}
        place[parent] = place = dict(below) if isinstance(below, dict) else {}
    place[last] = value
