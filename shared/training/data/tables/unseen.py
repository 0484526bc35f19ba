"""Rows of a new table as inputs of a model: its columns are read as those of the training table were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.reading import Column, Reading, listed
from shared.training.data.sources import DataMalformed
from shared.training.data.tables import cells as forms
from shared.training.data.tables.cells import POINT, Notation
from shared.training.data.tables.columns import Asked, Cells, Values, cells_of, notation_of, values_by_text
from shared.training.data.tables.inputs import Floats, raw, standardised
from shared.training.data.tables.rows import Table
from shared.training.table_specs import CsvSpec


def inputs_of(table: Table, reading: Reading, said: CsvSpec, mean: Floats, std: Floats) -> Floats:
    """Returns the rows of a table as the inputs that a data set stores, (n, inputs).

    Args:
        table: it may have further columns, in any order.
        reading: how the training table was read.
        said: what the spec says of the file.
        mean, std: by which the inputs are normalised later; 0 and 1 of a column that is standardised here.

    Raises:
        DataMalformed: a column is missing, or a cell cannot be read as those of the training table; names line,
            column and cell.
    """
    columns = reading.columns
    missing = [column.name for column in columns if column.name not in table.columns]
    if missing:
        raise DataMalformed(
            f"{table.file} lacks the columns {listed(missing)}, by which the model predicts; it has "
            f"{', '.join(table.columns)[:500]}"
        )
    try:
        found = {name: cells_of(table, name, said) for name in dict.fromkeys(column.name for column in columns)}
        numeric = [found[column.name] for column in columns if column.kind == "number"]
        notation = _notation([cells for cells in numeric if cells.present], said, written(reading))
        values = [_values(column, found[column.name], notation, written(reading)) for column in columns]
    except Asked as asked:
        text = str(asked)
        raise DataMalformed(f"{table.file}{', ' if text.startswith('line ') else ': '}{text}") from None
    made, at = list[Floats](), 0
    for each in values:
        as_is = each.column.kind in ("categories", "indicator") or (mean[at], std[at]) != (0, 1)
        made.append(raw(each) if as_is else standardised(each))
        at += each.column.n_inputs
    return np.concatenate(made, axis=1)


def written(reading: Reading) -> Notation:
    """Returns how the training table writes numbers."""
    return Notation(reading.decimal or POINT.decimal, reading.thousands or "")


def _notation(numeric: Sequence[Cells], said: CsvSpec, trained: Notation) -> Notation:
    """Returns the notation of the training table if numbers are written in it, else the one that fits."""
    try:
        return notation_of(numeric, said, (trained,))
    except Asked:
        return notation_of(numeric, said)


def _values(column: Column, cells: Cells, notation: Notation, trained: Notation) -> Values:
    if column.kind == "indicator":
        return Values(column, cells.missing.astype(np.float64), np.zeros_like(cells.missing))
    if cells.missing.any() and column.missing is None:
        at = cells.at(int(np.flatnonzero(cells.missing)[0]))
        raise Asked(f"{at}, and the training table had no missing cell there whose stand-in would be known")
    codes = column.kind == "categories"
    data = _codes(column, cells, notation, trained) if codes else _numbers(column, cells, notation)
    return Values(column, data, cells.missing)


def _numbers(column: Column, cells: Cells, notation: Notation) -> npt.NDArray[np.float64]:
    texts: Sequence[str] = cells.texts
    if column.unit:
        texts = [notation.bare(text) if notation.unit(text) == column.unit else text for text in texts]
    numbers = np.array(forms.seconds(texts)) if column.kind == "date" else notation.numbers(texts)
    wrong = np.flatnonzero(~np.isfinite(numbers) & ~cells.missing)
    if len(wrong):
        hint = f"; {forms.how_dates_are_read(texts[wrong[0]])}" if column.kind == "date" else ""
        raise Asked(f"{cells.at(int(wrong[0]))}; it is a column of {column.kind}s{_of_unit(column)}{hint}")
    found: npt.NDArray[np.float64] = np.where(cells.missing, column.missing or 0.0, numbers).astype(np.float64)
    return found


def _of_unit(column: Column) -> str:
    return f" in {column.unit}" if column.unit else ""


def _codes(column: Column, cells: Cells, notation: Notation, trained: Notation) -> npt.NDArray[np.int64]:
    """Returns positions among the categories; equal numbers are one, as 1 and 1.0, unless they are codes."""
    position = {name: code for code, name in enumerate(column.categories)}
    by_value: dict[Any, int] = {
        value: position[name] for name, value in values_by_text(column.categories, trained).items()
    }
    texts = np.where(cells.missing, str(column.missing), cells.texts).tolist() if cells.missing.any() else cells.texts
    codes = {text: _code(text, position, by_value, notation) for text in set(texts)}
    unknown = {text for text, code in codes.items() if code is None}
    if unknown:
        row = next(row for row, text in enumerate(texts) if text in unknown)
        raise Asked(f"{cells.at(row)}; the categories of the training table are {listed(column.categories)}")
    return np.fromiter(map(codes.__getitem__, texts), np.int64, len(texts))


def _code(text: str, position: dict[str, int], by_value: dict[Any, int], notation: Notation) -> int | None:
    if text in position:
        return position[text]
    if text in ("True", "False"):  # as pandas shows what a file calls TRUE or true
        return position.get(text.upper(), position.get(text.lower()))
    return by_value.get(notation.exact(text))
