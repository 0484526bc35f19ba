"""Tables of the pages: figures are shown as text with units, and sorted by their values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shared.core.formatting import Figure, percent
from shared.run_records.metrics import MetricInfo

__all__ = ["Figure", "as_title", "columns_of", "figure", "named_score", "percentage", "row_of", "score"]
_SORT = (
    "(a, b) => typeof a === 'number' && typeof b === 'number' ? a - b : "
    "(a == null) - (b == null) || String(a ?? '').localeCompare(String(b ?? ''), undefined, {numeric: true})"
)
"""Numbers by value, texts by their letters and by the numbers within them, missing values last."""


def columns_of(names: Iterable[str], *, sortable: bool = True) -> list[dict[str, Any]]:
    """The columns of a table whose rows are made by `row_of`."""
    return [
        {
            "name": name,
            "label": name,
            "field": name,
            "align": "left",
            "sortable": sortable,
            ":format": f"(value, row) => row.shown?.[{json.dumps(name)}] ?? value ?? ''",
            ":sort": _SORT,
        }
        for name in names
    ]


def row_of(cells: dict[str, Any]) -> dict[str, Any]:
    """A row with the values of its cells, and in `shown` the texts of its figures."""
    texts = {name: cell.text for name, cell in cells.items() if isinstance(cell, Figure)}
    return {name: cell.value if isinstance(cell, Figure) else cell for name, cell in cells.items()} | {"shown": texts}


def percentage(share: float | None) -> Figure:
    """A share as a cell."""
    return Figure(share, "" if share is None else percent(share))


def score(metric: MetricInfo, value: float | None) -> Figure:
    """A metric's value as a cell."""
    return percentage(value) if metric.unit == "share" else figure(value)


def named_score(metric: MetricInfo, value: float | None) -> Figure:
    """A metric's value with its name as a cell, for tables of runs that measure different ones."""
    return Figure(value, "" if value is None else f"{score(metric, value).text} {metric.label}")


def as_title(label: str) -> str:
    """A metric's label at the beginning of a title."""
    return label[:1].upper() + label[1:]


def figure(value: float | None, unit: str = "") -> Figure:
    """A number with four digits and its unit as a cell."""
    return Figure(value, "" if value is None else f"{value:.4g} {unit}".rstrip())
