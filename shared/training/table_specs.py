"""What a spec says of a table: how its file is written, how columns are read, what becomes of missing cells."""

from __future__ import annotations

import codecs
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from shared.core.records import LEFT_OUT, Record
from shared.core.validation import no_repeats

TABLES = (".csv", ".tsv", ".txt", ".data")
"""Endings of the files that are read as tables; `.gz` may follow."""
Column = Annotated[str, Field(min_length=1, max_length=200)]
ColumnNames = Annotated[tuple[Column, ...], Field(min_length=2, max_length=10_000), AfterValidator(no_repeats)]
ColumnUse = Literal["ignore", "number", "categories", "date"]
"""How a column is read: not at all, as numbers, as categories, or as times, which are numbers too."""
Missing = Literal["drop", "mean", "indicator"]
"""What becomes of missing cells: their rows are left out; or the training rows' mean (of categories the most frequent)
stands in; or it does, and one more input says so."""


def is_table(file: str) -> bool:
    """Returns whether a file is read as a table, by its ending."""
    return file.lower().removesuffix(".gz").endswith(TABLES)


def _known_encoding(name: str) -> str:
    try:
        codecs.lookup(name)
    except LookupError:
        raise ValueError(
            f"{name!r} is no encoding that Python knows; utf-8, utf-16, cp1252 and latin-1 are some"
        ) from None
    return name


class CsvSpec(Record):
    """How a table's file is written, where that cannot be told from it. None means what the file looks like.

    Attributes:
        delimiter: the sign between cells.
        decimal: the decimal sign of numbers.
        thousands: the sign between their groups of three digits.
        encoding: of the text; None means UTF-8, or what the file's byte order mark says.
        comment: the sign that begins a line which is left out; "" means that no line does.
        names: the columns of a file that has no header.
        marks: texts that mean a missing cell, in place of the usual ones; an empty cell is always missing.
    """

    delimiter: Annotated[Annotated[str, Field(min_length=1, max_length=1)] | None, LEFT_OUT] = None
    decimal: Annotated[Literal[".", ","] | None, LEFT_OUT] = None
    thousands: Annotated[Literal[".", ",", " ", "'"] | None, LEFT_OUT] = None
    encoding: Annotated[Annotated[str, AfterValidator(_known_encoding)] | None, LEFT_OUT] = None
    comment: Annotated[Annotated[str, Field(max_length=1)] | None, LEFT_OUT] = None
    names: Annotated[ColumnNames | None, LEFT_OUT] = None
    marks: Annotated[tuple[str, ...] | None, LEFT_OUT] = None
