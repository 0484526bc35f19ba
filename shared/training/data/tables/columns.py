"""What a column of texts holds: numbers, categories or dates, decided by what most of its cells are.

What could be read in two ways is asked: `Asked` says which option of the spec decides.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import compress
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shared.training.data.reading import Column
from shared.training.data.tables import cells as forms
from shared.training.data.tables.cells import COMMA, MARKS, NOTATIONS, POINT, Notation
from shared.training.data.tables.rows import Table
from shared.training.table_specs import ColumnUse, CsvSpec

FEW = 20
"""Up to so many different values a column may as well be one of categories, or a target one of classes."""
MOST_CATEGORIES = 1000
LOOKED_AT = 2000
"""Cells of a column by which the notation of numbers is recognised."""
PARTS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev"})
Role = Literal["input", "target", "names"]
AN_ID = re.compile(r"(?:^|[\W_])(?:id|ids|uuid|guid)$|[a-z](?:Id|ID)$", re.IGNORECASE)
A_NUMBERING = re.compile(r"(?:^|[\W_])(?:index|idx|nr|no|key|row|record|serial)$|^unnamed: \d+$", re.IGNORECASE)


class Asked(Exception):
    """A column may be read in several ways, or not as the spec says; the text says how to decide."""


@dataclass(frozen=True)
class Cells:
    """A column as it stands in the file.

    Attributes:
        missing: which cells are missing, (n,).
        lines: the line of each cell in the file.
    """

    name: str
    texts: Sequence[str]
    missing: npt.NDArray[np.bool_]
    lines: Sequence[int]

    @cached_property
    def present(self) -> list[str]:
        """The texts of the cells that are not missing."""
        return list(compress(self.texts, ~self.missing))

    def numbers(self, notation: Notation) -> npt.NDArray[np.float64]:
        """Returns the cells as numbers, NaN where they are missing or none, (n,)."""
        found = np.full(len(self.texts), np.nan)
        found[~self.missing] = notation.numbers(self.present)
        return found

    def of_rows(self, rows: npt.NDArray[np.intp]) -> Cells:
        """Returns the cells of some rows."""
        texts, lines = ([found[row] for row in rows] for found in (self.texts, self.lines))
        return Cells(self.name, texts, self.missing[rows], lines)

    def at(self, index: int) -> str:
        """Returns where a cell is and what it holds, in words."""
        text = self.texts[index]
        return f"line {self.lines[index]}: the cell of column {self.name} is {repr(text)[:60] if text else 'empty'}"

    def choices(self, *uses: ColumnUse) -> str:
        """Returns the option by which the spec says how to read this column."""
        plain = re.fullmatch(r"[^\W\d][\w .-]*", self.name)
        return (
            f"data.columns: {{{self.name if plain else json.dumps(self.name, ensure_ascii=False)}: {' | '.join(uses)}}}"
        )


def cells_of(table: Table, name: str, said: CsvSpec) -> Cells:
    """Returns a column of a table; cells without text, or with one that means so, are missing."""
    texts, gone = table.columns[name], {"", *(MARKS if said.marks is None else said.marks)}
    missing = np.fromiter(map(gone.__contains__, texts), np.bool_, len(texts))
    return Cells(name, texts, missing, table.lines)


@dataclass(frozen=True)
class Values:
    """A column as numbers.

    Attributes:
        column: what it is, without mean and deviation.
        data: the numbers, float64, (n,), or the positions of categories, int64; what missing cells hold says nothing.
        missing: which cells are missing, (n,).
    """

    column: Column
    data: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]


def values_of(cells: Cells, use: ColumnUse | None, notation: Notation, role: Role = "input") -> Values:
    """Returns a column as numbers.

    Args:
        cells: the column.
        use: how the spec says that it is read; None means as most of its cells are.
        notation: how the file writes numbers.
        role: what the column is in the data set; `names` are of classes or groups, also where they are numbers.

    Raises:
        Asked: it may be read in several ways, or a cell is not like most.
    """
    if not cells.present:
        raise Asked(f"column {cells.name} has no values: {cells.choices('ignore')}")
    if use == "categories":
        return _categories(cells, notation, role)
    if use == "date":
        return _dates(cells)
    if use == "number":
        return _measured(cells, notation)
    if role == "names":
        _ask_about_alikes(cells)
        return _categories(cells, notation, role)
    numbers = cells.numbers(notation)
    known = np.isfinite(numbers)
    if 2 * known.sum() > len(cells.present):
        _check_all(cells, known)
        if role == "input":
            _ask_about_codes(cells, numbers[known])
        return Values(Column(name=cells.name, kind="number"), numbers, cells.missing)
    if role == "input":
        _ask_about_parts(cells)
    _ask_about_texts(cells, numbers[known], notation)
    _ask_about_alikes(cells)
    return _categories(cells, notation, role)


# ---- numbers


def notation_of(columns: Iterable[Cells], said: CsvSpec, among: Iterable[Notation] = NOTATIONS) -> Notation:
    """Returns how a file writes numbers: the first notation in which all columns are numbers that are in any.

    Args:
        columns: those that may hold numbers.
        said: what the spec says of the file.
        among: which notations it may have.

    Raises:
        Asked: two columns are written differently, or a comma may be the decimal sign or divide thousands.
    """
    left = [
        notation
        for notation in among
        if said.decimal in (None, notation.decimal) and said.thousands in (None, notation.thousands)
    ]
    if not left:
        raise Asked("data.csv: decimal and thousands are the same sign")
    first = ""
    for cells in columns:
        fits = _notations_of(cells.present[:LOOKED_AT])
        both = [notation for notation in left if notation in fits]
        if fits and not both:
            raise Asked(
                f"column {cells.name} writes numbers with {fits[0]}, "
                f"{f'column {first}' if first else 'data.csv says that they have'} {left[0]}: write all alike"
            )
        if fits:
            left, first = both, cells.name if len(both) < len(left) else first
    if POINT not in left and COMMA in left and Notation(".", ",") in left:
        raise Asked(
            f"in column {first} a comma may be the decimal sign or divide thousands: data.csv: {{decimal: ','}} or "
            "{thousands: ','} says which"
        )
    return left[0]


def _notations_of(texts: Sequence[str]) -> list[Notation]:
    """Returns the notations in which most texts are numbers; none if they are whole numbers, or no numbers at all."""
    if all(text.isdecimal() for text in texts):
        return []
    bare = [forms.bare(text) for text in texts]
    shares = {notation: sum(not np.isnan(notation.number(text)) for text in bare) / len(bare) for notation in NOTATIONS}
    best = max(shares.values())
    return [found for found, share in shares.items() if share > 0.5 and (share == best or found == POINT)]


def _check_all(cells: Cells, known: npt.NDArray[np.bool_]) -> None:
    """Checks that all cells of a column of numbers are numbers.

    Raises:
        Asked: a cell is none; it is named.
    """
    odd = np.flatnonzero(~known & ~cells.missing)
    if not len(odd):
        return
    text = cells.texts[odd[0]]
    numbers = f"{len(cells.present) - len(odd)} of its {len(cells.present)} cells are finite numbers"
    remedy = f"mend it, or {cells.choices('categories', 'ignore')}, or data.csv: {{marks: [...]}} if it means missing"
    if any(not np.isnan(notation.number(text)) for notation in NOTATIONS):
        remedy = f"mend it, or data.csv: {{decimal: ..., thousands: ...}} says how numbers are written; {remedy[12:]}"
    raise Asked(f"{cells.at(odd[0])}, but {numbers}: {remedy}")


def _ask_about_codes(cells: Cells, numbers: npt.NDArray[np.float64]) -> None:
    """Asks about numbers that may be no quantities.

    Raises:
        Asked: they have leading zeros, are dates, number the rows, or are named as an id.
    """
    begin = next(filter(forms.CODE.fullmatch, cells.present), None)
    if begin is not None:
        raise Asked(
            f"column {cells.name} has leading zeros, as in {begin!r}, and may hold codes: "
            f"{cells.choices('categories', 'number', 'ignore')}"
        )
    if all(map(forms.COMPACT.fullmatch, cells.present)):
        raise Asked(
            f"column {cells.name} may hold dates, such as {cells.present[0]}: "
            f"{cells.choices('date', 'number', 'categories', 'ignore')}"
        )
    whole, n = bool((numbers == np.round(numbers)).all()), len(numbers)
    counted = n > FEW and any((numbers == np.arange(first, first + n)).all() for first in (0, 1))
    unique = n > FEW and whole and len(np.unique(numbers)) == n
    if counted or (whole and AN_ID.search(cells.name)) or (unique and A_NUMBERING.search(cells.name)):
        raise Asked(
            f"column {cells.name} looks like an id or a numbering of the rows ({cells.present[0]}, {cells.present[1]}, "
            f"...): {cells.choices('ignore', 'categories', 'number')}"
        )


def _measured(cells: Cells, notation: Notation) -> Values:
    """Returns a column of numbers without the unit or currency that most cells have."""
    unit = Counter(map(notation.unit, cells.present)).most_common(1)[0][0]
    bare = [notation.bare(text) if notation.unit(text) == unit else "" for text in cells.texts]
    numbers = notation.numbers(bare)
    _check_all(cells, np.isfinite(numbers))
    return Values(Column(name=cells.name, kind="number", unit=unit), numbers, cells.missing)


def _dates(cells: Cells) -> Values:
    numbers = np.array(forms.seconds(cells.texts))
    odd = np.flatnonzero(np.isnan(numbers) & ~cells.missing)
    if len(odd):
        raise Asked(f"{cells.at(odd[0])}; {forms.how_dates_are_read(cells.texts[odd[0]])}")
    return Values(Column(name=cells.name, kind="date"), numbers, cells.missing)


# ---- categories


def _ask_about_texts(cells: Cells, numbers: npt.NDArray[np.float64], notation: Notation) -> None:
    """Asks about texts that may be no categories.

    Raises:
        Asked: most are dates or numbers with a unit, many are numbers, or most rows have a text of their own.
    """
    n, such, different = len(cells.present), f"such as {cells.present[0]!r:.60}", Counter(cells.present)
    units = Counter[str]()
    for text, times in different.items():
        units[notation.unit(text)] += times
    unit, times = units.most_common(1)[0]
    if 2 * sum(times for text, times in different.items() if forms.is_date(text)) > n:
        raise Asked(
            f"column {cells.name} holds dates or times, {such}: {cells.choices('date', 'categories', 'ignore')}"
        )
    if unit and 2 * times > n:
        raise Asked(
            f"column {cells.name} holds numbers with {unit!r}, {such}: "
            f"{cells.choices('number', 'categories', 'ignore')}"
        )
    if len(np.unique(numbers)) > FEW:
        text = next(text for text in cells.present if np.isnan(notation.number(text)))
        raise Asked(
            f"column {cells.name} holds {len(numbers)} numbers beside texts such as {text!r:.60}: "
            f"{cells.choices('categories', 'ignore')}, or data.csv: {{marks: [...]}} if such texts mean missing"
        )
    if len(different) > max(FEW, n / 2):
        raise Asked(
            f"column {cells.name} has {len(different)} different texts in {n} rows, {such}, as ids and names have: "
            f"{cells.choices('ignore', 'categories')}"
        )


def _ask_about_parts(cells: Cells) -> None:
    """Asks about a column that says which rows are for training and which for tests.

    Raises:
        Asked: it holds little else; as an input it would say nothing of a sample.
    """
    found = {text.casefold() for text in set(cells.present)}
    if found <= PARTS and len(found) > 1 and found & {"train", "training"}:
        raise Asked(
            f"column {cells.name} looks like the parts of the data ({', '.join(sorted(found))}): a column named split, "
            f"of train and test, divides them; {cells.choices('ignore', 'categories')}"
        )


def _ask_about_alikes(cells: Cells) -> None:
    """Asks about texts that look the same.

    Raises:
        Asked: two differ in upper and lower case, blanks, or how their letters are encoded.
    """
    seen = dict[str, str]()
    for text in dict.fromkeys(cells.present):
        other = seen.setdefault(" ".join(unicodedata.normalize("NFKC", text).casefold().split()), text)
        if other != text:
            first, second = (f"{name!r:.60} (line {cells.lines[cells.texts.index(name)]})" for name in (other, text))
            raise Asked(
                f"column {cells.name} has {first} and {second}: write them alike, or {cells.choices('categories')} "
                "keeps them apart"
            )


def _categories(cells: Cells, notation: Notation, role: Role) -> Values:
    """Returns positions among the different values, in the order of numbers if all are, else of texts."""
    names, codes = _ordered(cells.present, notation)
    if role == "input" and len(names) > MOST_CATEGORIES:
        raise Asked(
            f"column {cells.name} has {len(names)} different texts (such as {cells.present[0]!r:.60}), at most "
            f"{MOST_CATEGORIES} are categories: {cells.choices('ignore')}"
        )
    data = np.full(len(cells.texts), -1, np.int64)
    data[~cells.missing] = codes
    return Values(Column(name=cells.name, kind="categories", categories=names), data, cells.missing)


def _ordered(texts: list[str], notation: Notation) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Returns the different values of texts, and the position of each text among them."""
    value = values_by_text(list(dict.fromkeys(texts)), notation)
    first = dict[Any, str]()  # all are numbers, or all are texts
    for text, own in value.items():
        first.setdefault(own, text)
    ordered = sorted(first)
    position = {own: code for code, own in enumerate(ordered)}
    codes = {text: position[own] for text, own in value.items()}
    return tuple(first[own] for own in ordered), np.fromiter(map(codes.__getitem__, texts), np.int64, len(texts))


def values_by_text(texts: Sequence[str], notation: Notation) -> dict[str, Decimal] | dict[str, str]:
    """Returns by what each text is told from others: the number that it is if all are, else itself."""
    if any(map(forms.CODE.fullmatch, texts)) or not np.isfinite(notation.numbers(texts)).all():
        return {text: text for text in texts}
    return {text: notation.exact(text) for text in texts}
