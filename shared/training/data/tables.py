"""Tables: a header, then one row for each sample."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.reading import Column, Read, Reading
from shared.training.data.sources import Arrays, DataMalformed
from shared.training.data.splits import drawn_tests
from shared.training.specs import TargetKind

SPLIT = "split"
"""The column of a table that says of each row whether it is of the part `train` or `test`."""
MOST_COLUMNS, MOST_CATEGORIES, MOST_ROWS = 10_000, 1000, 20_000_000
"""Most columns of a table, values of a column of categories, and rows."""

Texts = list[str]
FEW = 20
"""Up to so many different whole numbers a target may as well be a class: the spec has to say it."""


def read_table(path: Path, target: str, group: str | None, kind: TargetKind | None) -> Read:
    """Reads a table: a header, then one row for each sample.

    Columns of numbers are inputs as they are, normalised by the mean and standard deviation of the training rows.
    Another column has categories, and an input of 0 or 1 for each of them, in the order of their names. The target's
    classes are numbered in this order too.

    Raises:
        DataMalformed: a column is missing, a cell is empty, or a column has too many categories.
    """
    columns = _columns(path)
    for name in (target, *([group] if group else [])):
        if name not in columns:
            raise DataMalformed(f"{path.name}: there is no column {name!r}; it has {', '.join(columns)[:500]}")
    y, classes = _targets(columns.pop(target), kind, f"{path.name}: column {target}")
    groups, names = (None, ()) if group is None else _codes(columns.pop(group))
    test = _test_rows(columns.pop(SPLIT, None), y, path)
    x, described = _inputs(columns, path)
    plain = np.array([column.kind == "number" for column in described for _ in range(column.n_inputs)])
    mean, std = x[~test].mean(0), x[~test].std(0)
    found: Arrays = {
        "mean": np.where(plain, mean, 0.0),
        "std": np.where(plain & (std > 0), std, 1.0),
    }
    if y.dtype == np.int64:
        found["n_classes"] = np.array(int(y.max()) + 1)
    for part, rows in (("train", ~test), ("test", test)):
        found |= {f"{part}_x": x[rows], f"{part}_y": y[rows]}
        if groups is not None:
            found[f"{part}_group"] = groups[rows]
    aim = Column(name=target, kind="categories" if classes else "number", categories=classes)
    means, stds, at = found["mean"], found["std"], 0
    read = list[Column]()
    for column in described:
        own = {"mean": float(means[at]), "std": float(stds[at])} if column.kind == "number" else {}
        read.append(column.replace(**own))
        at += column.n_inputs
    return Read(found, Reading(columns=tuple(read), target=aim, classes=classes, groups=names))


def _columns(path: Path) -> dict[str, Texts]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            names = [name.strip() for name in next(rows, [])]
            if len(set(names)) != len(names) or not 2 <= len(names) <= MOST_COLUMNS:
                raise DataMalformed(f"{path.name}: the header needs 2 to {MOST_COLUMNS} different column names")
            columns: list[Texts] = [[] for _ in names]
            for row in rows:
                if row:
                    _add(columns, names, row, f"{path.name}, line {rows.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataMalformed(f"{path.name} cannot be read: {error}") from error
    if len(columns[0]) < 2:
        raise DataMalformed(f"{path.name} has {len(columns[0])} rows below its header, at least 2 are needed")
    return dict(zip(names, columns, strict=True))


def _add(columns: list[Texts], names: Texts, row: Texts, where: str) -> None:
    if len(row) != len(names):
        raise DataMalformed(f"{where}: {len(row)} cells, the header has {len(names)}")
    if len(columns[0]) >= MOST_ROWS:
        raise DataMalformed(f"{where}: a table has at most {MOST_ROWS} rows")
    for column, name, cell in zip(columns, names, row, strict=True):
        if not (text := cell.strip()):
            raise DataMalformed(f"{where}: the cell of column {name} is empty; fill it or leave the row out")
        column.append(text)


def _numbers(column: Texts) -> npt.NDArray[np.float64] | None:
    """Returns a column as numbers; None if a cell is none."""
    try:
        found = np.array([float(cell) for cell in column])
    except ValueError:
        return None
    return found if np.isfinite(found).all() else None


def _codes(column: Texts) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Returns for each cell the position of its value among the column's different values, in order; and the values."""
    values: npt.NDArray[Any] = np.array(column)
    numbers = _numbers(column)
    _, first, codes = np.unique(values if numbers is None else numbers, return_index=True, return_inverse=True)
    return codes.astype(np.int64), tuple(column[index] for index in first)


def _targets(column: Texts, kind: TargetKind | None, what: str) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Returns targets with the names of their classes, none of numbers."""
    numbers = _numbers(column)
    if kind == "tokens":
        raise DataMalformed(f"{what} has no tokens; a table's targets are classes or numbers")
    if kind == "numbers" and numbers is None:
        raise DataMalformed(f"{what} is to hold numbers, but holds {_first_text(column)!r:.60}")
    if kind is None and numbers is not None and _may_be_classes(numbers):
        many = f"{what} holds {len(np.unique(numbers))} different whole numbers"
        raise DataMalformed(f"{many}: say whether they are classes or numbers (data.kind)")
    return _codes(column) if kind == "classes" or numbers is None else (numbers, ())


def _may_be_classes(numbers: npt.NDArray[np.float64]) -> bool:
    return len(np.unique(numbers)) <= FEW and bool((numbers == np.round(numbers)).all())


def _first_text(column: Texts) -> str:
    return next(cell for cell in column if _numbers([cell]) is None)


def _inputs(columns: dict[str, Texts], path: Path) -> tuple[npt.NDArray[np.float32], list[Column]]:
    """Returns the inputs, (n, inputs), and the columns of which they are made."""
    found, described = list[npt.NDArray[Any]](), list[Column]()
    for name, column in columns.items():
        numbers = _numbers(column)
        if numbers is not None:
            found.append(numbers[:, None].astype(np.float32))
            described.append(Column(name=name, kind="number"))
            continue
        codes, names = _codes(column)
        n = len(names)
        if n > MOST_CATEGORIES:
            cause = (
                f"{n} different texts (such as {_first_text(column)!r:.60}), at most {MOST_CATEGORIES} are categories"
            )
            raise DataMalformed(f"{path.name}: column {name} has {cause}")
        found.append(np.eye(n, dtype=np.float32)[codes])
        described.append(Column(name=name, kind="categories", categories=names))
    if not found:
        raise DataMalformed(f"{path.name} has no column beside target, group and split")
    return np.concatenate(found, axis=1), described


def _test_rows(split: Texts | None, y: npt.NDArray[Any], path: Path) -> npt.NDArray[np.bool_]:
    """Returns which rows are of the test set."""
    if split is None:
        return drawn_tests(y)
    odd = set(split) - {"train", "test"}
    if odd or len(set(split)) < 2:
        raise DataMalformed(
            f"{path.name}: column {SPLIT} says train or test, and has rows of both; not {sorted(set(split))[:5]}"
        )
    found: npt.NDArray[np.bool_] = np.array(split) == "test"
    return found
