"""Measured devices: a CSV text with a row for each, whose figures replace those of a profile.

    # compute of my phones, and their links
    compute_sps, up_bps, down_bps, latency_s, availability
    202.6,       6e6,    13e6,     0.035,     always
    1216,        45.7e6, 85.7e6,   0.0105,    0-3600 7200-9000 / 86400

The columns are figures of a profile by name, in any order; a profile gives those for which there is no column. A cell
of `availability` is `always`, `never`, or on-intervals `FROM-TO` in simulated seconds, which repeat after the period
behind the `/`. Empty lines, and lines that begin with `#`, are ignored.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from shared.core.field_errors import told
from shared.core.formatting import counted, did_you_mean
from shared.core.records import Record
from shared.core.validation import VisibleText
from shared.simulation.availability import MAX_INTERVALS, Always, Availability, Trace, check_trace
from shared.simulation.distributions import MAX_QUANTITY, MIN_QUANTITY, Seeds

MAX_CHARS = 2**18
"""Most characters of a file of devices: it travels with the spec."""
MAX_ROWS = 10_000
"""Most rows of a file of devices."""
MEASURED = "measured"
"""The name, in records, of the profile of a device with a row."""
AVAILABILITY = "availability"
_RATE, _SECONDS = (MIN_QUANTITY, MAX_QUANTITY), (0.0, MAX_QUANTITY)
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "compute_sps": _RATE,
        "up_bps": _RATE,
        "down_bps": _RATE,
        "latency_s": _SECONDS,
        "jitter_s": _SECONDS,
        "link_delay_s": _SECONDS,
        "delay_s": _SECONDS,
        "drop_rate": (0.0, 1.0),
        "battery_j": (MIN_QUANTITY, MAX_QUANTITY),
        "j_per_flop": (0.0, 1e3),
        "j_per_byte_up": (0.0, 1e3),
        "j_per_byte_down": (0.0, 1e3),
    }
)
"""The columns that hold numbers -> the least and the largest number."""
COLUMNS = (*BOUNDS, AVAILABILITY)
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_SIGNED = re.compile(rf"[-+]?{_NUMBER}")
_INTERVAL = re.compile(rf"({_NUMBER})-({_NUMBER})")
_UNITS = {"bps": "bits a second", "sps": "samples a second", "s": "seconds", "j": "joules"}
_SEPARATORS = {";": "semicolons", "\t": "tabs"}
_NAMED = 40
"""Most characters of a cell that an error shows."""


@dataclass(frozen=True)
class MeasuredDevices:
    """The rows of a file of devices.

    Attributes:
        columns: in the file's order.
        rows: for each device its figures by column.
    """

    columns: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]


class DeviceFile(Record):
    """A file with measured devices. A spec names it by its path; `strata run` puts its text into the spec.

    Attributes:
        path: the file, relative to the spec's folder.
        rows: which device has which row: `drawn` by seed, each row once before any comes again; or `in_order`, device n
            row n.
        csv: the file's text.
    """

    path: Annotated[VisibleText, Field(min_length=1, max_length=500)]
    rows: Literal["drawn", "in_order"] = "drawn"
    csv: Annotated[str, Field(max_length=MAX_CHARS)]

    @model_validator(mode="before")
    @classmethod
    def _with_text(cls, raw: Any) -> Any:
        if isinstance(raw, str) or (isinstance(raw, Mapping) and "csv" not in raw):
            raise ValueError("only `strata run SPEC` reads a file of devices; elsewhere give its text as `file.csv`")
        return raw

    @model_validator(mode="after")
    def _readable(self) -> DeviceFile:
        try:
            _ = self.devices
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        return self

    @property
    def devices(self) -> MeasuredDevices:
        """The rows, read."""
        return _kept(self.csv)

    @property
    def digest(self) -> str:
        """The sha256 of the file."""
        return hashlib.sha256(self.csv.encode()).hexdigest()

    def check_rows(self, n_devices: int) -> None:
        """Check that each of the devices has a row of its own, where they have the rows in order.

        Raises:
            ValueError: there are fewer rows.
        """
        n = len(self.devices.rows)
        if self.rows == "in_order" and n < n_devices:
            have = f"{self.path} has {counted(n, 'row')} for {counted(n_devices, 'device')}"
            raise ValueError(f"devices.file: {have}; rows: drawn gives a row to several")

    def row_of(self, seeds: Seeds) -> Callable[[int], Mapping[str, Any]]:
        """Return the figures of a device by its number; `seeds` are the streams of all devices together."""
        rows = self.devices.rows
        if self.rows == "in_order":
            return rows.__getitem__

        @lru_cache(maxsize=1024)
        def order(turn: int) -> Sequence[int]:
            found: list[int] = np.random.default_rng(seeds(f"device rows {turn}")).permutation(len(rows)).tolist()
            return found

        return lambda number: rows[order(number // len(rows))[number % len(rows)]]


@lru_cache(maxsize=4)
def _kept(text: str) -> MeasuredDevices:
    """The rows of a text, which comes with every message and is read once."""
    return devices_in(text)


def devices_in(text: str, max_rows: int = MAX_ROWS) -> MeasuredDevices:
    """Read the text of a file of devices.

    Raises:
        ValueError: names the line, the column and the fault.
    """
    lines = _lines(text)
    at, header = next(lines, (1, []))
    columns = tuple(header)
    _check_columns(columns, at)
    rows: list[Mapping[str, Any]] = []
    n_intervals = 0
    for at, cells in lines:
        if len(cells) != len(columns):
            raise ValueError(f"line {at} has {counted(len(cells), 'cell')} for {counted(len(columns), 'column')}")
        if len(rows) == max_rows:
            raise ValueError(f"there are more than {max_rows:,} rows")
        row = MappingProxyType({name: _value(name, cell, at) for name, cell in zip(columns, cells, strict=True)})
        rows.append(row)
        when = row.get(AVAILABILITY)
        n_intervals += len(when.traces[0]) if isinstance(when, Trace) else 0
        if n_intervals > MAX_INTERVALS and max_rows <= MAX_ROWS:
            raise ValueError(f"line {at}: the rows have more than {MAX_INTERVALS:,} on-intervals together")
    if not rows:
        raise ValueError("there is no row")
    return MeasuredDevices(columns, tuple(rows))


def _lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that has some."""
    for at, line in enumerate(io.StringIO(text.removeprefix("\ufeff"), newline=None), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                cells = next(csv.reader([line], skipinitialspace=True))
            except csv.Error as error:
                raise ValueError(f"line {at}: {error}") from None
            yield at, [cell.strip() for cell in cells]


def _check_columns(columns: Sequence[str], at: int) -> None:
    if not columns:
        raise ValueError("there is no line with the names of columns")
    for index, name in enumerate(columns):
        if len(columns) == 1 and (found := [each for each in (";", "\t") if each in name]):
            raise ValueError(f"line {at}: cells are separated by {_SEPARATORS[found[0]]}; write commas between them")
        if not name:
            raise ValueError(f"line {at}: column {index + 1} has no name; an index (of pandas, say) must be left out")
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS)
            unit = _UNITS.get(hint.rstrip("'?").rpartition("_")[2])
            hint += f" (in {unit})" if unit else ""
            raise ValueError(f"line {at}: no column {name[:_NAMED]!r}{hint}; there are {', '.join(COLUMNS)}")
        if name in columns[:index]:
            raise ValueError(f"line {at}: the column {name} comes twice")


def _value(name: str, cell: str, at: int) -> float | Availability:
    """The value of a cell."""
    where, shown = f"line {at}, column {name}", repr(cell[:_NAMED])
    if not cell:
        raise ValueError(f"{where} is empty; a figure that was not measured is left to the profile, without a column")
    if name == AVAILABILITY:
        return _availability(cell, where, shown)
    if not _SIGNED.fullmatch(cell):
        comma = "; write it with a point, and without a separator of thousands" if "," in cell else ""
        raise ValueError(f"{where}: {shown} is not a number{comma}")
    value, (low, high) = float(cell), BOUNDS[name]
    if not low <= value <= high:
        raise ValueError(f"{where}: {shown} is not from {low:g} to {high:g}")
    return value


def _availability(cell: str, where: str, shown: str) -> Availability:
    if cell == "always":
        return Always()
    listed, repeats, period = cell.partition("/")
    words = [] if cell == "never" else listed.split()
    found = [_INTERVAL.fullmatch(word) for word in words]
    if (not words and cell != "never") or None in found or (repeats and not _SIGNED.fullmatch(period.strip())):
        raise ValueError(f"{where}: {shown} is neither always, never, nor intervals such as 0-3600 7200-9000 / 86400")
    intervals = tuple((float(match[1]), float(match[2])) for match in found if match)
    period_s = float(period) if repeats else None
    check_trace(intervals, where, period_s)
    try:
        return Trace(traces=(intervals,), period_s=period_s)
    except ValidationError as error:
        raise ValueError(f"{where}: {told(error)}") from None


def availability_cell(availability: Availability) -> str:
    """Return the cell for an availability: that of a single trace, or `always`.

    Raises:
        ValueError: no cell stands for it.
    """
    if isinstance(availability, Always):
        return "always"
    if not isinstance(availability, Trace) or len(availability.traces) > 1:
        raise ValueError(f"no cell stands for the availability {availability.name}")
    words = " ".join(f"{_short(begin)}-{_short(end)}" for begin, end in availability.traces[0])
    period = "" if availability.period_s is None else f" / {_short(availability.period_s)}"
    return f"{words}{period}" if words else "never"


def _short(seconds: float) -> str:
    """A number that reads as the same float."""
    return repr(float(seconds)).removesuffix(".0")
