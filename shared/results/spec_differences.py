"""What distinguishes runs: the keys in which their specs differ, and a short label for each run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared.run_records.runs import RunInfo
from shared.spec.experiment import ExperimentSpec

_MAX_CHARS = 60


def flat(spec: ExperimentSpec) -> dict[str, Any]:
    """A spec's fields by dotted key (`partition.alpha`), without its name, which has no effect.

    A file of devices has the first digits of its sha256 in place of its text.
    """
    found = dict(_leaves(spec.model_dump(mode="json", exclude={"name"}), ""))
    if spec.devices.file is not None:
        del found["devices.file.csv"]
        found["devices.file.sha256"] = spec.devices.file.digest[:12]
    return found


def _leaves(fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def differing(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose value is not the same in all flat specs, in order of first appearance."""
    known = dict.fromkeys(key for spec in specs for key in spec)
    return [key for key in known if len({text(spec.get(key)) for spec in specs}) > 1]


def text(value: Any) -> str:
    """A value as written in a spec; a dash for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def described(values: Mapping[str, Any]) -> str:
    """Values on one line, `alpha=0.1, seed=2`: the last part of a key where that is unambiguous."""
    names = {key: _last(key) for key in values}
    often = Counter(names.values())
    words = ((name if often[name] == 1 else key, text(values[key])) for key, name in names.items())
    return ", ".join(f"{name}={value}" for name, value in words)


def _last(key: str) -> str:
    """The last part of a dotted key; of `partition.name` the one before, which is more specific."""
    parts = key.removesuffix(".name").split(".")
    return parts[-1]


def labels(infos: Sequence[RunInfo]) -> list[str]:
    """A unique label for each run: its name, or, for runs of the same name, the values in which their specs differ.

    Runs that are equal in both get their ids as well.
    """
    names = Counter(info.name for info in infos)
    found = [info.name if names[info.name] == 1 else _among_namesakes(info, infos, len(names) == 1) for info in infos]
    short = [label if len(label) <= _MAX_CHARS else f"{label[: _MAX_CHARS - 1]}…" for label in found]
    often = Counter(short)
    return [label if often[label] == 1 else f"{label} ({info.run})" for label, info in zip(short, infos, strict=True)]


def _among_namesakes(info: RunInfo, infos: Sequence[RunInfo], only_name: bool) -> str:
    """The values that distinguish a run from the others of its name; with the name, unless all runs have it."""
    specs = {other.run: flat(other.spec) for other in infos if other.name == info.name}
    keys = differing(list(specs.values()))
    values = {key: specs[info.run].get(key) for key in keys}
    what = described({key: value for key, value in values.items() if value is not None})
    if not what:
        return info.name
    return what if only_name else f"{info.name}: {what}"
