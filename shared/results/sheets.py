"""Rows as CSV (RFC 4180, with line feeds)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of the same columns under their names; None is an empty cell, lists and booleans stand as JSON."""
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
