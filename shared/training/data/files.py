"""Data sets in files of any name: an `.npz` of arrays, a table (`.csv`), or a folder of images by class.

Where a file has no test set of its own, a fifth of its samples is drawn by a fixed seed, of each class where the
targets are classes.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.training.data.pictures import read_images
from shared.training.data.sources import Arrays, DataMalformed, read_npz
from shared.training.data.splits import drawn_tests
from shared.training.specs import TargetKind

SPLIT = "split"
"""The column of a table that says of each row whether it is of the part `train` or `test`."""
MOST_COLUMNS, MOST_CATEGORIES, MOST_ROWS = 10_000, 1000, 20_000_000
"""Most columns of a table, values of a column of categories, and rows."""

Texts = list[str]
FEW = 20
"""Up to so many different whole numbers a target may as well be a class: the spec has to say it."""


def read_file(
    path: Path, *, target: str | None, group: str | None, kind: TargetKind | None, size: int | None
) -> Arrays:
    """Reads the arrays of a data set from a file or folder.

    Args:
        path: ends with `.npz` or `.csv`, or is a folder.
        target: the column of a table that models are to predict.
        group: the column of a table that says to which group a row belongs.
        kind: of a table's targets, `classes` or `numbers`; None means numbers if all of them are, but a few different
            whole numbers may be either.
        size: side to which images are resized, in pixels; None means that all have the same size.

    Raises:
        DataMalformed: it cannot be read, or has wrong contents; the message names key, column or image.
    """
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix == ".csv":
        return read_table(path, target or "", group, kind)
    return read_images(path, size)


# ---- tables


def read_table(path: Path, target: str, group: str | None, kind: TargetKind | None) -> Arrays:
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
    y = _targets(columns.pop(target), kind, f"{path.name}: column {target}")
    groups = None if group is None else _codes(columns.pop(group))
    test = _test_rows(columns.pop(SPLIT, None), y, path)
    x, plain = _inputs(columns, path)
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
    return found


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


def _codes(column: Texts) -> npt.NDArray[np.int64]:
    """Returns for each cell the position of its value among the column's different values, in order."""
    values: npt.NDArray[Any] = np.array(column)
    numbers = _numbers(column)
    _, codes = np.unique(values if numbers is None else numbers, return_inverse=True)
    return codes.astype(np.int64)


def _targets(column: Texts, kind: TargetKind | None, what: str) -> npt.NDArray[Any]:
    numbers = _numbers(column)
    if kind == "tokens":
        raise DataMalformed(f"{what} has no tokens; a table's targets are classes or numbers")
    if kind == "numbers" and numbers is None:
        raise DataMalformed(f"{what} is to hold numbers, but holds {_first_text(column)!r:.60}")
    if kind is None and numbers is not None and _may_be_classes(numbers):
        many = f"{what} holds {len(np.unique(numbers))} different whole numbers"
        raise DataMalformed(f"{many}: say whether they are classes or numbers (data.kind)")
    return _codes(column) if kind == "classes" or numbers is None else numbers


def _may_be_classes(numbers: npt.NDArray[np.float64]) -> bool:
    return len(np.unique(numbers)) <= FEW and bool((numbers == np.round(numbers)).all())


def _first_text(column: Texts) -> str:
    return next(cell for cell in column if _numbers([cell]) is None)


def _inputs(columns: dict[str, Texts], path: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Returns the inputs, (n, inputs), and which of them are numbers rather than categories, (inputs,)."""
    found, plain = list[npt.NDArray[Any]](), list[bool]()
    for name, column in columns.items():
        numbers = _numbers(column)
        if numbers is not None:
            found.append(numbers[:, None].astype(np.float32))
            plain.append(True)
            continue
        codes = _codes(column)
        n = int(codes.max()) + 1
        if n > MOST_CATEGORIES:
            cause = (
                f"{n} different texts (such as {_first_text(column)!r:.60}), at most {MOST_CATEGORIES} are categories"
            )
            raise DataMalformed(f"{path.name}: column {name} has {cause}")
        found.append(np.eye(n, dtype=np.float32)[codes])
        plain += [False] * n
    if not found:
        raise DataMalformed(f"{path.name} has no column beside target, group and split")
    return np.concatenate(found, axis=1), np.array(plain)


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
