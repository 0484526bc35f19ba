"""The cells of a table's file, as texts by column, with the line of each row."""

from __future__ import annotations

import csv
import io
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from shared.training.data.sources import DataMalformed
from shared.training.data.tables.cells import POINT
from shared.training.data.tables.dialect import Dialect, dialect_of, opened
from shared.training.table_specs import CsvSpec

MOST_COLUMNS, MOST_ROWS = 10_000, 20_000_000
BLOCK = 512
"""Rows that are divided into columns at once."""
SHARED_TEXTS = 4096
"""About so many different texts of a column are kept once, however many cells they fill."""
Texts = list[str]


@dataclass
class Table:
    """The cells of a file.

    Attributes:
        file: its name.
        columns: texts without spaces around them, by the column's name.
        lines: the line of the file on which each row begins, as an editor counts them.
        notes: what was left out, and how the file is written if unlike most.
    """

    file: str
    columns: dict[str, Texts]
    lines: Sequence[int] = field(default_factory=lambda: array("q"))
    notes: Texts = field(default_factory=list)


class _Lines:
    """The lines of a file; those of comments are empty, so that lines are counted as in the file."""

    def __init__(self, lines: Iterator[str], dialect: Dialect) -> None:
        self._lines, self._dialect = lines, dialect
        self.between_rows = True
        self.n_comments = 0

    def __iter__(self) -> Iterator[str]:
        for _ in islice(self._lines, self._dialect.skipped):
            yield "\n"
        if not self._dialect.comment:
            yield from self._lines
        for text in self._lines:
            if self.between_rows and text.startswith(self._dialect.comment):
                self.n_comments += 1
                yield "\n"
            else:
                self.between_rows = False
                yield text


def read_rows(path: Path, said: CsvSpec, least: int = 2) -> Table:
    """Reads the cells of a table, which has at least this many rows and columns.

    Raises:
        DataMalformed: a row has another number of cells than the header, names are missing, or the text is damaged.
    """
    try:
        dialect = dialect_of(path, said)
        with opened(path) as raw, io.TextIOWrapper(raw, encoding=dialect.encoding, newline="") as file:
            return _table(path.name, _Lines(iter(file), dialect), dialect, said, least)
    except UnicodeError as error:
        raise DataMalformed(f"{path.name}, {_undecodable(path, said.encoding or 'utf-8')}") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataMalformed(f"{path.name} cannot be read: {error}") from error


def _table(file: str, lines: _Lines, dialect: Dialect, said: CsvSpec, least: int) -> Table:
    rows = _numbered(file, lines, dialect)
    names = list(said.names) if said.names else [name.strip() for name in next(rows, (0, []))[1]]
    _check_names(file, names, least, has_header=said.names is None)
    texts, kept, n_empty = _Texts(len(names)), array("q"), 0
    while block := [*islice(rows, BLOCK)]:
        odd = next(((line, len(row)) for line, row in block if len(row) != len(names)), None)
        if odd:
            raise DataMalformed(f"{file}, line {odd[0]}: {odd[1]} cells, the header has {len(names)}")
        full = [(line, row) for line, row in block if any(row) and any(map(str.strip, row))]
        n_empty += len(block) - len(full)
        kept.extend(line for line, _ in full)
        if len(kept) > MOST_ROWS:
            raise DataMalformed(f"{file}, line {kept[MOST_ROWS]}: a table has at most {MOST_ROWS} rows")
        texts.add([row for _, row in full])
    if len(kept) < least:
        raise DataMalformed(f"{file} has {len(kept)} rows below its header, at least {least} are needed")
    notes = [*dialect.notes]
    notes += [f"lines of comments that were left out: {lines.n_comments}"] if lines.n_comments else []
    notes += [f"rows without any cell that were left out: {n_empty}"] if n_empty else []
    named, left_out = _named(names, texts.columns)
    return Table(file, named, kept, [*notes, *left_out])


class _Texts:
    """The cells of rows by column, without spaces around them; those of equal text are one object, if there are few."""

    def __init__(self, n_columns: int) -> None:
        self.columns: list[Texts] = [[] for _ in range(n_columns)]
        self._known: list[dict[str, str]] = [{} for _ in range(n_columns)]

    def add(self, rows: list[Texts]) -> None:
        """Adds rows, which have a cell for each column."""
        for column, known, cells in zip(self.columns, self._known, zip(*rows, strict=True), strict=False):
            stripped = [*map(str.strip, cells)]
            once = known.setdefault if len(known) < SHARED_TEXTS else known.get
            column.extend(map(once, stripped, stripped))


def _numbered(file: str, lines: _Lines, dialect: Dialect) -> Iterator[tuple[int, Texts]]:
    """Yields each row with the line on which it begins."""
    rows = csv.reader(lines, delimiter=dialect.delimiter, skipinitialspace=True, strict=True)
    begin = 1
    try:
        for row in rows:
            if row:
                yield begin, row
            begin, lines.between_rows = rows.line_num + 1, True
    except csv.Error as error:
        raise DataMalformed(f"{file}, line {begin}: {error}") from error


def _check_names(file: str, names: Texts, least: int, *, has_header: bool) -> None:
    """Checks the names of columns; those of two columns may be empty if these have no cells."""
    if not least <= len(names) <= MOST_COLUMNS:
        raise DataMalformed(
            f"{file}: the header has {len(names)} column names, {least} to {MOST_COLUMNS} are needed: {names!s:.80}; "
            "data.csv: {delimiter: ...} says what separates cells"
        )
    name, times = Counter(name for name in names if name).most_common(1)[0] if any(names) else ("", 1)
    if times > 1:
        raise DataMalformed(f"{file}: the header needs different column names; {name!r:.80} comes {times} times")
    if has_header and not any(np.isnan(POINT.number(name)) for name in names):
        raise DataMalformed(f"{file}: its first row holds numbers only; data.csv: {{names: [...]}} names the columns")


def _named(names: Texts, columns: list[Texts]) -> tuple[dict[str, Texts], list[str]]:
    """Returns columns by name, and a note of each that is left out, since it has neither name nor cells."""
    found, notes = dict[str, Texts](), []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        if name or any(column):
            found[name or f"Unnamed: {number}"] = column  # as pandas calls it
        else:
            notes.append(f"column {number + 1} has neither name nor cells, and was left out")
    return found, notes


def _undecodable(path: Path, encoding: str) -> str:
    """Returns the first line that is not of an encoding, in words."""
    cause = f"its text is not {encoding.upper()}: data.csv: {{encoding: cp1252}} (Western Windows) or another says what"
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode(encoding)
            except UnicodeError:
                return f"line {number}: {cause}, here {line.strip().decode('latin-1')!r:.60}"
    return f"line 1: {cause}"
