"""Printing: results go to stdout, progress and errors to stderr.

Names, reasons and messages come from other machines. Nothing in them steers the terminal or styles the output: what
cannot be printed is escaped, and markup of rich is shown as it is written.

Tables fit the terminal: when it is too narrow, a table leaves out its least important columns and names them below.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shared.core.errors import StrataError
from shared.runtime.logs import plain
from shared.runtime.streams import Unbroken

_UNBOUNDED = 10_000
_BEYOND_ASCII = re.compile(r"[^\n -~]")
_MAX_CHARS = 24
"""Longest word, in characters, that is not broken across lines."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: heading, in one or more lines.
        cells: one cell per row.
        spare: how dispensable the column is; 0 means that it is always shown.
        justify: alignment of the cells.
        fold: whether a cell may take several lines.
    """

    name: str
    cells: Sequence[str | Text]
    spare: int = 0
    justify: JustifyMethod = "right"
    fold: bool = False


@dataclass(frozen=True)
class FittedTable:
    """A table that drops columns when the terminal is too narrow, the one with the largest `spare` first.

    Attributes:
        columns: all columns.
        title: printed above the table.
        bold: indices of bold rows, from 0.
        lined: indices of rows with a line below them.
    """

    columns: Sequence[Column]
    title: str | None = None
    bold: frozenset[int] = frozenset()
    lined: frozenset[int] = frozenset()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, and below it the names of the columns that were left out."""
        shown, left_out = list(self.columns), list[Column]()
        while _width(console, options, shown) > options.max_width:
            least = max(shown, key=lambda column: column.spare)
            if not least.spare:
                break
            shown.remove(least)
            left_out.append(least)
        yield self._table(shown)
        if left_out:
            names = ", ".join(" ".join(column.name.split()) for column in self.columns if column in left_out)
            yield Text(f"in a wider terminal also: {names}", style="dim")

    def _table(self, columns: Sequence[Column]) -> Table:
        table = Table(title=self.title)
        for each in columns:
            overflow: OverflowMethod = "fold" if each.fold else "ellipsis"
            table.add_column(Text(each.name), justify=each.justify, no_wrap=not each.fold, overflow=overflow)
        for row, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
            table.add_row(*cells, style="bold" if row in self.bold else None, end_section=row in self.lined)
        return table


def _width(console: Console, options: ConsoleOptions, columns: Sequence[Column]) -> int:
    """Width of a table with one line per row; a cell that may be folded counts as wide as its longest word."""
    bare = [replace(column, cells=_words(column.cells)) if column.fold else column for column in columns]
    table = FittedTable(bare)._table(bare)
    return table.__rich_measure__(console, options.update(max_width=_UNBOUNDED)).maximum


def _words(cells: Sequence[str | Text]) -> list[str]:
    return [max(str(cell).split(), key=len, default="")[:_MAX_CHARS] for cell in cells]


_WIDE = 200
"""Width when the output is not a terminal: a table of rounds keeps its columns, however many digits its times have."""

_STATUS_STYLES = {
    "completed": "green",
    "failed": "red",
    "unreadable": "red",
    "stopped": "yellow",
    "paused": "yellow",
    "running": "cyan",
}


class Terminal(Console):
    """A console on which texts are only texts: only rich's own control sequences reach the terminal."""

    def __init__(self, file: TextIO | None) -> None:
        stream = Unbroken(file)
        width = None if stream.isatty() else _WIDE
        super().__init__(file=cast(TextIO, stream), width=width, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render an object; characters in its text that cannot be printed are escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escaped(text), style, control)


def quiet() -> Console:
    """A console that prints nothing, not even in a notebook."""
    return Console(quiet=True, force_terminal=False, force_jupyter=False)


def working(words: str, console: Console) -> AbstractContextManager[object]:
    """Shows these words while the context is open; not in a notebook, where rich would need ipywidgets."""
    return contextlib.nullcontext() if console.is_jupyter else console.status(words)


def escaped(text: str) -> str:
    """Return lines with all other characters that cannot be printed escaped."""
    return "\n".join(map(plain, text.split("\n")))


def stdout() -> Console:
    """A console on the current `sys.stdout` (tests replace it)."""
    return Terminal(sys.stdout)


def stderr() -> Console:
    """A console on stderr."""
    return Terminal(sys.stderr)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a JSON value as a text with letters of all languages; what cannot be printed is written as `\\u009b`."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _BEYOND_ASCII.sub(lambda at: at[0] if at[0].isprintable() else json.dumps(at[0])[1:-1], text)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one JSON value to stdout; with `indent=None` on one line."""
    print_text(json_text(value, indent=indent) + "\n")


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows with equal columns to stdout as CSV, with a header."""
    from shared.core.formatting import csv_text

    print_text(csv_text(rows))


def print_text(text: str) -> None:
    """Write a text to stdout: to a terminal with escapes, into a file or pipe as it is."""
    sys.stdout.write(escaped(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_error(error: StrataError) -> None:
    """Print the field and the cause in red on one line of stderr; the end of a log follows below, uncoloured."""
    cause, _, log = error.detail.strip().partition("\n")
    if error.field and error.field not in cause:
        cause = f"{error.field}: {cause}"
    console = stderr()
    console.print(Text(f"error: {cause}", style="bold red"), soft_wrap=True)
    if log:
        console.print(Text(log), soft_wrap=True)


def status_text(status: str, reason: str | None = None) -> Text:
    """A status in its colour, followed by its reason."""
    words = status if not reason else f"{status} ({reason})"
    return Text(words, style=_STATUS_STYLES.get(status, ""))
