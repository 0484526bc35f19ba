"""Rows of a new table as inputs of a model: its columns are read as those of the training table were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shared.training.data.reading import Column, listed
from shared.training.data.sources import DataMalformed
from shared.training.data.tables import cells as forms
from shared.training.data.tables.cells import MARKS, Notation
from shared.training.data.tables.columns import Asked, Cells, Values, notation_of
from shared.training.data.tables.inputs import Floats, raw, standardised
from shared.training.data.tables.rows import Table
from shared.training.table_specs import CsvSpec


def inputs_of(table: Table, columns: Sequence[Column], said: CsvSpec, mean: Floats, std: Floats) -> Floats:
    """Returns the rows of a table as the inputs that a data set stores, (n, inputs).

    Args:
        table: it may have further columns, in any order.
        columns: of the training table.
        said: what the spec says of the file.
        mean, std: by which the inputs are normalised later; 0 and 1 of a column that is standardised here.

    Raises:
        DataMalformed: a column is missing, or a cell cannot be read as those of the training table; names line,
            column and cell.
    """
    missing = [column.name for column in columns if column.name not in table.columns]
    if missing:
        raise DataMalformed(
            f"{table.file} lacks the columns {listed(missing)}, by which the model predicts; it has "
            f"{', '.join(table.columns)[:500]}"
        )
    marks = MARKS if said.marks is None else frozenset(said.marks)
    try:
        found = {name: _cells(table, name, marks) for name in dict.fromkeys(column.name for column in columns)}
        numeric = [found[column.name] for column in columns if column.kind == "number"]
        notation = notation_of([cells for cells in numeric if cells.present], said)
        values = [_values(column, found[column.name], notation) for column in columns]
    except Asked as asked:
        text = str(asked)
        raise DataMalformed(f"{table.file}{', ' if text.startswith('line ') else ': '}{text}") from None
    made, at = list[Floats](), 0
    for each in values:
        as_is = each.column.kind in ("categories", "indicator") or (mean[at], std[at]) != (0, 1)
        made.append(raw(each) if as_is else standardised(each))
        at += each.column.n_inputs
    return np.concatenate(made, axis=1)


def _cells(table: Table, name: str, marks: frozenset[str]) -> Cells:
    texts = table.columns[name]
    return Cells(name, texts, np.array([not text or text in marks for text in texts], np.bool_), table.lines)


def _values(column: Column, cells: Cells, notation: Notation) -> Values:
    if column.kind == "indicator":
        return Values(column, cells.missing.astype(np.float64), np.zeros_like(cells.missing))
    if cells.missing.any() and column.missing is None:
        at = cells.at(int(np.flatnonzero(cells.missing)[0]))
        raise Asked(f"{at}, and the training table had no missing cell there whose stand-in would be known")
    data = _codes(column, cells, notation) if column.kind == "categories" else _numbers(column, cells, notation)
    return Values(column, data, cells.missing)


def _numbers(column: Column, cells: Cells, notation: Notation) -> npt.NDArray[np.float64]:
    texts: Sequence[str] = cells.texts
    if column.unit:
        texts = [notation.bare(text) if notation.unit(text) == column.unit else text for text in texts]
    numbers = np.array(forms.seconds(texts)) if column.kind == "date" else notation.numbers(texts)
    wrong = np.flatnonzero(~np.isfinite(numbers) & ~cells.missing)
    if len(wrong):
        raise Asked(f"{cells.at(int(wrong[0]))}; it is a column of {column.kind}s{_of_unit(column)}")
    found: npt.NDArray[np.float64] = np.where(cells.missing, column.missing or 0.0, numbers).astype(np.float64)
    return found


def _of_unit(column: Column) -> str:
    return f" in {column.unit}" if column.unit else ""


def _codes(column: Column, cells: Cells, notation: Notation) -> npt.NDArray[np.int64]:
    """Returns positions among the categories; equal numbers are one, as 1 and 1.0, unless they are codes."""
    position = {name: code for code, name in enumerate(column.categories)}
    values = notation.numbers(column.categories)
    codes = any(len(name) > 1 and name[0] == "0" and name.isdecimal() for name in column.categories)
    by_value = {} if codes or not np.isfinite(values).all() else {value: at for at, value in enumerate(values.tolist())}
    found = np.empty(len(cells.texts), np.int64)
    for row, (text, gone) in enumerate(zip(cells.texts, cells.missing, strict=True)):
        name = str(column.missing) if gone else text
        code = position.get(name, by_value.get(notation.number(name)))
        if code is None:
            raise Asked(f"{cells.at(row)}; the categories of the training table are {listed(column.categories)}")
        found[row] = code
    return found
