"""The inputs of models that the columns of a table become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shared.training.data.moments import moments
from shared.training.data.reading import Column
from shared.training.data.tables.columns import Asked, Values
from shared.training.table_specs import Missing

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
EXACT, CLOSE = 1e-6, 1e-5
"""In standard deviations: how far float32 may move a number, and mean or deviation, before float64 takes its place."""


def fitted(values: Values, train: Flags, missing: Missing | None) -> list[Values]:
    """Returns a column with the statistics of its training rows and what stands in for missing cells.

    Args:
        values: the column.
        train: which rows are for training, (n,).
        missing: the treatment of missing cells; with `indicator` a column with some is followed by its indicator.

    Raises:
        Asked: no training row has a value.
    """
    column, known = values.column, values.data[train & ~values.missing]
    if not len(known):
        raise Asked(f"column {column.name} has no value in any training row: leave it out")
    if column.kind == "categories":
        stand_in: float | int = int(np.bincount(known).argmax())
        column = column.replace(missing=column.categories[int(stand_in)] if values.missing.any() else None)
    else:
        mean, std = moments(known)
        stand_in = mean
        column = column.replace(mean=mean, std=std or 1.0, missing=mean if values.missing.any() else None)
    found = [replace(values, column=column, data=np.where(values.missing, stand_in, values.data))]
    if missing == "indicator" and values.missing.any():
        indicator = Column(name=column.name, kind="indicator")
        found.append(Values(indicator, values.missing.astype(np.float64), np.zeros_like(values.missing)))
    return found


def width(values: Sequence[Values]) -> int:
    """Returns the number of inputs."""
    return sum(each.column.n_inputs for each in values)


def assembled(values: Sequence[Values], train: Flags) -> tuple[Floats, Floats, Floats, tuple[Column, ...]]:
    """Returns inputs, (n, inputs), with the mean and deviation by which each is normalised later, and the columns.

    Where float32 holds numbers, mean and deviation as float64 does, up to a hundred-thousandth of a deviation, inputs
    are the numbers themselves. Others, such as Unix time, are normalised here, before they become float32.
    """
    x = np.concatenate([raw(each) for each in values], axis=1)
    with np.errstate(all="ignore"):  # numbers beyond float32 are infinite here
        mean, std = x[train].mean(0), x[train].std(0)
    columns, at = list[Column](), 0
    for each in values:
        inputs, column = slice(at, at + each.column.n_inputs), each.column
        if column.mean is not None and column.std is not None and _float32_holds(each, x[:, at], mean[at], std[at]):
            std[at] = std[at] or 1
            column = column.replace(mean=float(mean[at]), std=float(std[at]))
        else:
            x[:, inputs], mean[inputs], std[inputs] = standardised(each), 0, 1
        columns.append(column)
        at = inputs.stop
    return x, mean, std, tuple(columns)


def standardised(values: Values) -> Floats:
    """Returns the inputs of a column, (n, inputs): numbers as (value - mean) / std, computed in float64."""
    if values.column.mean is None or values.column.std is None:
        return raw(values)
    found: Floats = ((values.data - values.column.mean) / values.column.std).astype(np.float32)
    return found[:, None]


def raw(values: Values) -> Floats:
    """Returns the inputs of a column, (n, inputs): numbers as they are, categories as 0 and 1."""
    if values.column.kind == "categories":
        hot: Floats = np.eye(values.column.n_inputs, dtype=np.float32)[values.data]
        return hot
    with np.errstate(over="ignore", under="ignore"):
        found: Floats = values.data.astype(np.float32)
    return found[:, None]


def _float32_holds(values: Values, x: Floats, mean: np.float32, std: np.float32) -> bool:
    column = values.column
    assert column.mean is not None and column.std is not None  # noqa: S101, PT018 - it is a column of numbers
    if not np.isfinite((mean, std)).all():
        return False
    moved = np.abs(x - values.data).max()
    off = max(abs(float(mean) - column.mean), abs(float(std or 1) - column.std))
    return bool(moved <= EXACT * column.std and off <= CLOSE * column.std)
