"""How a table's file is written: its encoding, the lines above its header, and the sign between its cells."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from dataclasses import dataclass
from pathlib import Path

from shared.training.data.sources import DataMalformed
from shared.training.table_specs import CsvSpec

SIGNS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""The signs between cells that are recognised."""
MARKED = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by byte order mark; the mark of UTF-32 begins with that of UTF-16, which therefore comes after it."""
PACKED = {
    b"\x1f\x8b": "packed by gzip: let its name end with .gz",
    b"PK\x03\x04": "a zip archive or an Excel file: unpack it, or save the sheet as .csv",
    b"BZh": "packed by bzip2: unpack it",
    b"\xfd7zXZ": "packed by xz: unpack it",
    b"PAR1": "a Parquet file: save it as .csv",
    b"ARROW1": "a Feather file: save it as .csv",
}
"""What files that are no text begin with, and the remedy."""
SEEN = 200
"""Lines at the beginning of a file that are looked at."""
LONGEST = 1 << 20
"""Characters of such a line."""
HINT = re.compile(r'"?sep=(.)"?')
"""The line by which Excel is told the sign between cells."""


@dataclass(frozen=True)
class Dialect:
    """How a file is written.

    Attributes:
        encoding: a name that Python knows.
        delimiter: the sign between cells.
        comment: what begins a line that is left out; empty if there are none below the header.
        skipped: number of lines above the header.
        notes: what was found, and is not what every table has.
    """

    encoding: str
    delimiter: str
    comment: str = ""
    skipped: int = 0
    notes: tuple[str, ...] = ()


def opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Opens a file, unpacked if it is a `.gz`."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def dialect_of(path: Path, said: CsvSpec) -> Dialect:
    """Finds out how a file is written, as far as its spec does not say it.

    Raises:
        DataMalformed: it may be read in two ways; OSError, UnicodeError: it cannot be read.
    """
    encoding = said.encoding or _encoding(path)
    lines = _first_lines(path, encoding)
    notes = [] if encoding.startswith("utf-8") or said.encoding else [f"its text is {encoding.upper()}"]
    hint = HINT.fullmatch(lines[0].strip()) if lines else None
    skipped = 1 if hint else 0
    delimiter = said.delimiter or (hint[1] if hint else None)
    if said.comment is None:
        comments = _comments_above(lines[skipped:], delimiter, path)
        skipped += comments
        notes += [f"lines of comments above the header: {comments}"] if comments else []
    shown = [line for line in lines[skipped:] if not (said.comment and line.startswith(said.comment))]
    delimiter = delimiter or _delimiter(shown, path)
    if delimiter != ",":
        notes.append(f"its cells are separated by {SIGNS.get(delimiter, repr(delimiter))}")
    return Dialect(encoding, delimiter, said.comment or "", skipped, tuple(notes))


def _encoding(path: Path) -> str:
    with opened(path) as file:
        head = file.read(4096)
    for mark, encoding in MARKED.items():
        if head.startswith(mark):
            return encoding
    for magic, what in PACKED.items():
        if head.startswith(magic):
            raise DataMalformed(f"{path.name} is no text but {what}")
    if b"\0" in head:
        raise DataMalformed(
            f"{path.name} holds bytes of zero: is its text UTF-16? data.csv: {{encoding: utf-16-le}} or utf-16-be"
        )
    return "utf-8"


def _first_lines(path: Path, encoding: str) -> list[str]:
    """Returns the first lines, without one that may go on below them."""
    with opened(path) as raw, io.TextIOWrapper(raw, encoding=encoding, newline="") as file:
        lines = [line for _ in range(SEEN + 1) if (line := file.readline(LONGEST))]
    return lines[:SEEN]


def _comments_above(lines: list[str], delimiter: str | None, path: Path) -> int:
    """Returns how many lines at the top begin with `#` and are no header."""
    n = next((n for n, line in enumerate(lines) if not line.startswith("#")), 0)
    if n == 0:
        return 0
    sign = delimiter or _delimiter(lines[n:], path)
    if _width(lines[n - 1], sign) == _width(lines[n], sign):
        raise DataMalformed(
            f"{path.name}, line {n} begins with # and has as many cells as the next line: "
            "data.csv: {comment: '#'} says that it is a comment, {comment: ''} that it is the header"
        )
    return n


def _width(line: str, sign: str) -> int:
    return len(next(csv.reader([line], delimiter=sign, skipinitialspace=True), []))


def _delimiter(lines: list[str], path: Path) -> str:
    """Returns the sign that divides all lines into equally many cells; without one, that with most in the first."""
    widths = {}
    for sign in SIGNS:
        rows = csv.reader(lines, delimiter=sign, skipinitialspace=True)
        widths[sign] = [len(row) for row in rows if row] or [0]
    even = [sign for sign, found in widths.items() if found[0] > 1 and len(set(found)) == 1]
    if len(even) > 1:
        which = " or ".join(SIGNS[sign] for sign in even)
        raise DataMalformed(
            f"{path.name}: its cells may be separated by {which}: data.csv: {{delimiter: {even[0]!r}}} says by which"
        )
    return even[0] if even else max(widths, key=lambda sign: widths[sign][0])
