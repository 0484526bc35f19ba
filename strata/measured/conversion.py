"""Files of devices made of other projects' measurements: which devices are taken, and what is said of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shared.core.errors import BadInput
from shared.simulation.device_file import MAX_CHARS, availability_cell, devices_in
from strata.measured.pickled import data_in
from strata.measured.read import bytes_of

MOST_BYTES = 256 * 2**20
"""Largest file that is converted."""

MOST_DIGITS = 400
"""Longest text that is read as a number; one text may stand for millions of figures."""


@dataclass
class Converted:
    """Rows for a file of devices.

    Attributes:
        columns: of the rows.
        rows: by column a number, or the availability.
        remarks: what was assumed, and what was left out, a sentence each.
    """

    columns: tuple[str, ...]
    rows: list[Mapping[str, Any]]
    remarks: list[str] = field(default_factory=list)

    def text(self, origin: str) -> str:
        """The text of the file; its first lines say what it was made of.

        Raises:
            BadInput: a value is out of bounds, or the rows do not fit into a spec.
        """
        lines = [*(f"# {line}" for line in (origin, *self.remarks)), ",".join(self.columns)]
        lines += [",".join(_cell(row[column]) for column in self.columns) for row in self.rows]
        text = "\n".join(lines) + "\n"
        if len(text) > MAX_CHARS:
            fit = max(len(self.rows) * MAX_CHARS // len(text), 1)
            cause = f"{len(self.rows):,} rows have {len(text):,} characters, of which a spec holds {MAX_CHARS:,}"
            raise BadInput(f"{cause}; try --rows {fit}")
        try:
            devices_in(text)
        except ValueError as error:
            raise BadInput(f"the measurements make no file of devices: {error}") from None
        return text


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else availability_cell(value)


def drawn(keys: Sequence[Any], n: int, seed: int) -> list[Any]:
    """Some of the keys, drawn by seed, in their order; all, if there are no more."""
    if len(keys) <= n:
        return list(keys)
    chosen = np.random.default_rng(seed).choice(len(keys), size=n, replace=False)
    return [keys[at] for at in np.sort(chosen).tolist()]


def mapping_in(path: Path) -> dict[Any, Any]:
    """The mapping in a file that is JSON or pickled.

    Raises:
        BadInput: it cannot be read, or holds something else.
    """
    content = bytes_of(path, MOST_BYTES)
    try:
        found = json.loads(content) if content.lstrip()[:1] == b"{" else data_in(content)
    except (BadInput, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: {error}") from None
    if not isinstance(found, dict) or not found:
        raise BadInput(f"{path}: it holds no mapping from devices to their figures")
    return found


def digest_of(path: Path) -> str:
    """The first digits of a file's sha256."""
    return hashlib.sha256(bytes_of(path, MOST_BYTES)).hexdigest()[:12]


def number_of(value: Any) -> float | None:
    """A finite number above 0, also one that is written as a text; None for anything else."""
    found = float_of(value)
    return found if found is not None and 0 < found < float("inf") else None


def float_of(value: Any) -> float | None:
    """A number, also one that is written as a text of up to `MOST_DIGITS` characters; None for anything else."""
    if isinstance(value, str | bytes) and len(value) > MOST_DIGITS:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
