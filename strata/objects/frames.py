"""Records as tables of pandas, which is imported when it is needed and is no dependency."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.core.errors import NotFound
from shared.core.records import Record
from shared.results.folder import DEVICES
from shared.results.reader import rows_of
from shared.run_records.groups import GLOBAL_ON
from shared.run_records.rounds import RoundInfo

if TYPE_CHECKING:
    import pandas as pd

_NUMBERS_AND_TEXTS = bool | int | float | str | None


class PandasMissing(NotFound):
    """pandas is not installed; the message says how to install it."""

    code = "pandas_missing"


def frame(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> pd.DataFrame:
    """Rows as a `DataFrame`; one without rows has no columns.

    Raises:
        PandasMissing: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        what = "pandas is not installed: `pip install pandas`, or StrataFL with its extra: `pip install .[notebook]`"
        raise PandasMissing(what) from None
    found = pd.DataFrame(list(rows))
    return found.set_index(index) if index and len(found) else found


def flat(record: Record) -> dict[str, Any]:
    """The numbers and texts of a record by field; lists and maps are left out."""
    return plain(record.model_dump())


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and texts of a row, and its names of groups as one text; other lists and maps are left out."""
    found = {name: value for name, value in row.items() if isinstance(value, _NUMBERS_AND_TEXTS)}
    return found | ({"groups": ", ".join(row["groups"])} if row.get("groups") else {})


def visit_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The tasks in training of a results folder; the algorithm's own numbers are named `figure_...`."""
    for _, row in rows_of(folder / DEVICES):
        if row.get("kind") == "train":
            figures = row.get("figures") or {}
            own = {f"figure_{name}": value for name, value in figures.items() if isinstance(value, int | float)}
            yield {name: value for name, value in plain(row).items() if name != "kind"} | own


_TEXTS = ("kind", "client", "evaluation", "name", "target")


def class_table(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """The lines of `classes.csv` or `confusion.csv`; an undefined share is None.

    Raises:
        NotFound: the run has no such table.
    """
    path = folder / name
    if not path.exists():
        why = (
            "it is written after the last round, if the spec's metrics count classes (f1, recall, precision, confusion)"
        )
        raise NotFound(f"run {folder.name} has no {name}: {why}")
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield {key: cell if key in _TEXTS else _number(cell) for key, cell in row.items()}


def _number(cell: str) -> float | None:
    return None if not cell else int(cell) if cell.isdigit() else float(cell)


def round_row(row: RoundInfo) -> dict[str, Any]:
    """A round: its numbers, accuracy and loss on each test set, how its metrics spread over clients."""
    found = {name: value for name, value in flat(row).items() if name not in ("kind", "evaluation")}
    found |= {"accuracy": row.accuracy, "loss": row.loss, "n_lost": row.n_lost}
    for name, score in (row.evaluation or {}).items():
        if name != "global" and not name.startswith(GLOBAL_ON):  # a table of their own
            found |= {f"accuracy_{name}": score.accuracy, f"loss_{name}": score.loss}
    for which, spread in row.clients.items():
        found |= {f"clients_{which}_{part}": getattr(spread, part) for part in ("mean", "min", "max")}
    for label, spreads in row.client_metrics.items():
        for which, spread in spreads.items():
            found |= {f"clients_{which}_{label}_{part}": getattr(spread, part) for part in ("mean", "min", "max")}
    return found
