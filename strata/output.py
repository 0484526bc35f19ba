"""What the commands print: results on stdout, progress and errors on stderr, numbers for people.

Tables that fit the terminal: rather than fold its cells, a table leaves out what is least needed, and says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderResult
from rich.table import Table
from rich.text import Text

from shared.core.errors import StrataError

_UNBOUNDED = 10_000
_LONGEST = 24
"""Letters; a longer word is broken."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: its heading, in one or more lines.
        cells: one for each row.
        spare: how well a reader does without it; 0 = not at all, so that it stays in any terminal.
        justify: where its cells stand.
        fold: whether its cells may take several lines.
    """

    name: str
    cells: Sequence[str | Text]
    spare: int = 0
    justify: JustifyMethod = "right"
    fold: bool = False


@dataclass(frozen=True)
class FittedTable:
    """A table that goes without columns where the terminal is too narrow, those that are `spare` most first.

    Attributes:
        columns: all of them.
        title: above it.
        bold: numbers of rows, from 0.
        lined: numbers of rows below which there is a line.
    """

    columns: Sequence[Column]
    title: str | None = None
    bold: frozenset[int] = frozenset()
    lined: frozenset[int] = frozenset()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, and below it what a wider terminal would show."""
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
    """What a table takes on one line a row; of cells that may be folded, their longest words count."""
    bare = [replace(column, cells=_words(column.cells)) if column.fold else column for column in columns]
    table = FittedTable(bare)._table(bare)
    return table.__rich_measure__(console, options.update(max_width=_UNBOUNDED)).maximum


def _words(cells: Sequence[str | Text]) -> list[str]:
    return [max(str(cell).split(), key=len, default="")[:_LONGEST] for cell in cells]


_WIDE = 160
"""Columns where no terminal says how many there are: a table in a log is not folded."""

_STATUS_STYLES = {
    "completed": "green",
    "failed": "red",
    "stopped": "yellow",
    "paused": "yellow",
    "running": "cyan",
}


def stdout() -> Console:
    """A console on stdout as it is now (tests replace it)."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE)


def stderr() -> Console:
    """A console on stderr."""
    return Console(file=sys.stderr, width=None if sys.stderr.isatty() else _WIDE)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """One JSON value on stdout; with `indent=None` on one line."""
    sys.stdout.write(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of the same columns on stdout, under their names."""
    from shared.core.formatting import csv_text

    sys.stdout.write(csv_text(rows))
    sys.stdout.flush()


def print_error(error: StrataError) -> None:
    """The field and the cause in red on one line of stderr; the end of a log below it, plain."""
    cause, _, log = error.detail.strip().partition("\n")
    if error.field and error.field not in cause:
        cause = f"{error.field}: {cause}"
    console = stderr()
    console.print(Text(f"error: {cause}", style="bold red"), soft_wrap=True)
    if log:
        console.print(Text(log), soft_wrap=True)


def status_text(status: str, reason: str | None = None) -> Text:
    """A status in its colour, with its reason."""
    words = status if not reason else f"{status} ({reason})"
    return Text(words, style=_STATUS_STYLES.get(status, ""))
