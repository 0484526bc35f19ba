"""Text for people: numbers, units for axes, suggestions for unknown names, and rows as CSV."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_TIMES = ((172_800, 86_400.0, "days"), (7200, 3600.0, "h"), (120, 60.0, "min"), (0, 1.0, "s"))
_SIZES = ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB"), (0, 1.0, "B"))
SYNONYMS = {
    "learning_rate": "lr",
    "rounds": "num_rounds",
    "n_rounds": "num_rounds",
    "epochs": "local_epochs",
    "steps": "local_steps",
    "clients": "num_devices",
    "num_clients": "num_devices",
    "dataset": "data",
}
"""Names that other tools give to fields of a spec -> their names here."""


@dataclass(frozen=True)
class Figure:
    """A number in a table: the value by which its column is sorted, and the text that is shown. None has no value."""

    value: float | None
    text: str


def scale(unit: Literal["bytes", "seconds"], most: float) -> tuple[float, str]:
    """Returns the unit for values up to `most`: its worth in bytes or seconds, and its name."""
    units = _TIMES if unit == "seconds" else _SIZES
    return next((worth, name) for least, worth, name in units if most >= least)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows as CSV (RFC 4180, line feeds), with a header; None is an empty cell, lists and booleans are JSON."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows[:1]:
        writer.writerow(row)
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | list | tuple | dict) else value


def natural(name: str) -> tuple[str | int, ...]:
    """Returns a key that sorts `edge-2` before `edge-10`."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name))


def label_of(name: str, params: Mapping[str, Any]) -> str:
    """Formats a name with parameters: `top_k(k=3)`, or the name alone."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in params.items())})" if params else name


def percent(share: float | None) -> str:
    """Formats a share: `97.50 %`, a dash for None."""
    return "-" if share is None else f"{100 * share:.2f} %"


def number(value: float | None, digits: int = 4) -> str:
    """Formats a number with fixed digits, a dash for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def counted(number: int, noun: str) -> str:
    """Formats a number of things: `1 edge`, `2 edges`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size(n_bytes: int) -> str:
    """Formats bytes in the unit that leaves one to three digits before the point."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"


def duration(seconds: float | None) -> str:
    """Formats seconds: `< 1 ms`, `0.063 s`, `8.3 s`, `2:05`, `1:02:05`."""
    if seconds is None:
        return "-"
    if 0 < seconds < 0.001:
        return "< 1 ms"
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` if a known name is a synonym of this one or similar to it, else an empty text."""
    names = sorted(known)
    synonym = SYNONYMS.get(name)
    near = [synonym] if synonym in names else difflib.get_close_matches(name[:100], names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def parameters_text(schema: Mapping[str, Any]) -> str:
    """Returns the parameters of a JSON schema with their defaults, `-` for none; a `name` chooses the schema."""
    fields = {name: field for name, field in schema.get("properties", {}).items() if name != "name"}
    known = [f"{name}={field['default']}" if "default" in field else name for name, field in fields.items()]
    return ", ".join(known) or "-"
