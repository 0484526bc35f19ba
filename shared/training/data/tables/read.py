"""Tables: a header, then one row for each sample. What was decided about them is in their reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.runtime.host_limits import available_bytes
from shared.training.data.reading import Read, Reading, listed
from shared.training.data.sources import Arrays, DataMalformed
from shared.training.data.splits import drawn_tests
from shared.training.data.tables.cells import POINT, Notation
from shared.training.data.tables.columns import FEW, Asked, Cells, Values, cells_of, notation_of, values_of
from shared.training.data.tables.inputs import Flags, assembled, fitted, width
from shared.training.data.tables.rows import Table, read_rows
from shared.training.specs import DataSpec
from shared.training.table_specs import ColumnUse, CsvSpec

SPLIT = "split"
"""The column of a table that says of each row whether it is of the part `train` or `test`."""
MOST_ASKED = 5
"""Most columns about which one error asks."""


def read_table(path: Path, spec: DataSpec) -> Read:
    """Reads a table.

    A column is what most of its cells are. Numbers are inputs, normalised by mean and standard deviation of the
    training rows; categories become an input of 0 or 1 for each of them, in the order of their names. The target's
    classes are numbered in this order too.

    Raises:
        DataMalformed: a column is missing, or a cell is, or a column may be read in several ways; the message names
            line, column and the option that decides.
    """
    table = read_rows(path, spec.csv or CsvSpec())
    columns = _Columns.of(table, spec)
    with columns.questions.raised_at_the_end():
        columns.treat_missing()
    with columns.questions.raised_at_the_end():
        columns.read()
    return _read(columns, spec)


@dataclass
class _Questions:
    """What a table leaves open, column by column, raised as one error."""

    file: str
    texts: list[str] = field(default_factory=list)

    def of(self, read: Callable[[], Values]) -> Values | None:
        """Returns what a function returns; None if it asks."""
        try:
            return read()
        except Asked as asked:
            self.texts.append(str(asked))
            return None

    @contextmanager
    def raised_at_the_end(self) -> Iterator[None]:
        """Raises, after the block, what was asked in it."""
        try:
            yield
        except Asked as asked:
            self.texts.insert(0, str(asked))
        if self.texts:
            many = [f"({number}) {text}" for number, text in enumerate(self.texts, 1)]
            shown = listed(many, MOST_ASKED, "; ") if len(many) > 1 else self.texts[0]
            raise DataMalformed(f"{self.file}, {shown}" if shown.startswith("line ") else f"{self.file}: {shown}")


@dataclass
class _Columns:
    """The columns of a table on their way from texts to numbers.

    Attributes:
        cells: those that are used, by name.
        roles: names of the columns that are no inputs.
        inputs: set by `read`, as are `target`, `group` and `notation`.
    """

    table: Table
    spec: DataSpec
    cells: dict[str, Cells]
    notes: list[str]
    questions: _Questions
    inputs: list[Values] = field(default_factory=list)
    target: Values | None = None
    group: Values | None = None
    notation: Notation = POINT

    @classmethod
    def of(cls, table: Table, spec: DataSpec) -> _Columns:
        """Returns the columns that the spec does not leave out."""
        uses = spec.columns or {}
        for name in (*uses, *filter(None, (spec.target, spec.group))):
            if name not in table.columns:
                header = "; of a file without a header data.csv: {names: [...]} names the columns"
                raise DataMalformed(
                    f"{table.file}: there is no column {name!r}; it has {', '.join(table.columns)[:500]}{header}"
                )
        if left_out := [name for name, use in uses.items() if use == "ignore"]:
            table.notes.append(f"left out, as data.columns says: {listed(left_out)}")
        if wrong := {spec.target, spec.group} & set(left_out):
            raise DataMalformed(f"{table.file}: column {wrong.pop()} is target or group and cannot be left out")
        found = {name: cells_of(table, name, spec.csv or CsvSpec()) for name in table.columns if name not in left_out}
        return cls(table, spec, found, table.notes, _Questions(table.file))

    @property
    def split(self) -> Cells | None:
        """The column that divides training and test rows; None if there is none, or it is said to be an input."""
        return None if SPLIT in (self.spec.columns or {}) else self.cells.get(SPLIT)

    @property
    def roles(self) -> set[str | None]:
        return {self.spec.target, self.spec.group, *([SPLIT] if self.split else [])}

    def treat_missing(self) -> None:
        """Leaves out the rows whose missing cells nothing can stand in for; asks where the spec does not say how."""
        gaps = {name: cells for name, cells in self.cells.items() if cells.missing.any()}
        for name, cells in gaps.items():
            if not cells.present:
                self.questions.texts.append(f"column {name} has no values: {cells.choices('ignore')}")
            elif self.spec.missing is None:
                self.questions.texts.append(_of_missing(cells, needed=name in self.roles))
        out = [cells for name, cells in gaps.items() if self.spec.missing == "drop" or name in self.roles]
        if not out or self.questions.texts:
            return
        gone = np.logical_or.reduce([cells.missing for cells in out])
        counts = listed([f"{cells.name} ({cells.missing.sum()})" for cells in out])
        self.notes.append(f"{gone.sum()} of {len(gone)} rows were left out, for missing cells of {counts}")
        kept = np.flatnonzero(~gone)
        if len(kept) < 2:
            raise DataMalformed(f"{self.table.file}: {len(kept)} rows have no missing cell, at least 2 are needed")
        self.cells = {name: cells.of_rows(kept) for name, cells in self.cells.items()}

    def read(self) -> None:
        """Turns target, group and inputs into numbers."""
        if self.split is not None:
            _check_split(self.split, self.table.file)
        said, uses = self.spec.csv or CsvSpec(), dict(self.spec.columns or {})
        numeric = [cells for name, cells in self.cells.items() if uses.get(name, "number") == "number"]
        self.notation = notation_of(
            [cells for cells in numeric if cells.name not in self.roles - {self.spec.target}], said
        )
        if self.notation != POINT:
            self.notes.append(f"numbers have {self.notation}")
        for name, cells in self.cells.items():
            if name == self.spec.target:
                self.target = self.questions.of(lambda cells=cells: self._target(cells))  # type: ignore[misc]
            if name == self.spec.group:
                self.group = self._values(cells, uses.get(name) and "categories", "names")
            if name not in self.roles:
                values = self._values(cells, uses.get(name), "input")
                self.inputs += [values] if values else []
        if not self.inputs and not self.questions.texts:
            raise DataMalformed(f"{self.table.file} has no column beside target, group and split")

    def _values(self, cells: Cells, use: ColumnUse | None, role: Any) -> Values | None:
        return self.questions.of(lambda: values_of(cells, use, self.notation, role))

    def _target(self, cells: Cells) -> Values:
        kind, use = self.spec.kind, (self.spec.columns or {}).get(cells.name)
        if kind not in (None, "classes", "numbers"):
            raise Asked(f"column {cells.name} has no {kind}; a table's targets are classes or numbers")
        if kind == "numbers" and use is None:
            use = "number"
        found = values_of(cells, use, self.notation, "names" if kind == "classes" else "target")
        if (found.column.kind == "categories") != (kind == "classes") and kind is not None:
            raise Asked(f"column {cells.name}: data.kind says {kind}, data.columns {use}")
        if kind is None and use is None and found.column.kind == "number" and _may_be_classes(found.data):
            many = f"column {cells.name} holds {len(np.unique(found.data))} different whole numbers"
            raise Asked(f"{many}: say whether they are classes or numbers (data.kind)")
        return found


def _check_split(split: Cells, file: str) -> None:
    parts = set(split.texts)
    if parts != {"train", "test"}:
        raise DataMalformed(
            f"{file}: column {SPLIT} says train or test, and has rows of both; not {sorted(parts)[:5]} "
            f"(if it is no such column: {split.choices('categories', 'ignore')})"
        )


def _of_missing(cells: Cells, *, needed: bool) -> str:
    first = int(np.flatnonzero(cells.missing)[0])
    n, text = int(cells.missing.sum()), cells.texts[first]
    mark = f", data.csv: {{marks: []}} says that {text!r} is a value" if text else ""
    others = ", mean puts the training rows' mean, indicator does and adds an input that says so"
    return (
        f"{cells.at(first)}, {n} of {len(cells.texts)} cells are missing: data.missing: drop leaves such rows out"
        f"{'' if needed else others}{mark}"
    )


def _may_be_classes(numbers: npt.NDArray[np.float64]) -> bool:
    return len(np.unique(numbers)) <= FEW and bool((numbers == np.round(numbers)).all())


# ---- from columns to arrays


def _read(columns: _Columns, spec: DataSpec) -> Read:
    target, group = columns.target, columns.group
    assert target is not None  # noqa: S101 - or it was asked about
    y = target.data
    test = drawn_tests(y) if columns.split is None else np.array(columns.split.texts) == "test"
    with columns.questions.raised_at_the_end():
        inputs = [each for values in columns.inputs for each in fitted(values, ~test, spec.missing)]
    _check_memory(len(y) * width(inputs), columns.table.file)
    x, mean, std, described = assembled(inputs, ~test)
    found: Arrays = {"mean": mean, "std": std}
    if y.dtype == np.int64:
        found["n_classes"] = np.array(target.column.n_inputs)
    for part, rows in (("train", ~test), ("test", test)):
        found |= {f"{part}_x": x[rows], f"{part}_y": y[rows]}
        if group is not None:
            found[f"{part}_group"] = group.data[rows]
    reading = Reading(
        columns=described,
        target=target.column,
        classes=target.column.categories,
        groups=group.column.categories if group is not None else (),
        decimal=None if columns.notation == POINT else columns.notation.decimal,
        thousands=columns.notation.thousands or None,
        notes=(*columns.notes, *_notes(inputs, ~test)),
    )
    return Read(found, reading)


def _notes(inputs: Sequence[Values], train: Flags) -> list[str]:
    """Returns what is to be known of inputs: what stands in for missing cells, and columns that say nothing."""
    found = []
    for values in inputs:
        column, known = values.column, values.data[train & ~values.missing]
        if (n := int(values.missing.sum())) and column.missing is not None:
            by = f"{column.missing:g}" if isinstance(column.missing, float) else repr(column.missing)
            found.append(f"{n} missing cells of {column.name} became {by}, from the training rows")
        if column.kind == "categories" and (new := set(values.data[~train].tolist()) - set(known.tolist())):
            names = listed([column.categories[code] for code in sorted(new)])
            found.append(f"column {column.name}: no training row has {names}, which test rows have")
        if (known == known[0]).all():
            found.append(f"column {column.name} is the same in all training rows, and tells a model nothing")
    return found


def _check_memory(numbers: int, file: str) -> None:
    needed, there = 12 * numbers, available_bytes()  # float32, in two copies and one of a column at a time
    if there is not None and needed > there:
        raise DataMalformed(f"{file}: its inputs need {needed / 1e9:.1f} GB, {there / 1e9:.1f} GB are free")
