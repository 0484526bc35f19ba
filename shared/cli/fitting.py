"""Tables that fit the terminal: rather than fold its cells, a table leaves out what is least needed, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

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
    """A table that goes without columns where the terminal is too narrow, those that are `spare` most first."""

    columns: Sequence[Column]
    title: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, and below it what a wider terminal would show."""
        shown, left_out = list(self.columns), list[Column]()
        while _width(console, options, shown) > options.max_width:
            least = max(shown, key=lambda column: column.spare)
            if not least.spare:
                break
            shown.remove(least)
            left_out.append(least)
        yield _table(shown, self.title)
        if left_out:
            names = ", ".join(" ".join(column.name.split()) for column in self.columns if column in left_out)
            yield Text(f"in a wider terminal also: {names}", style="dim")


def _width(console: Console, options: ConsoleOptions, columns: Sequence[Column]) -> int:
    """What a table takes on one line a row; of cells that may be folded, their longest words count."""
    bare = [replace(column, cells=_words(column.cells)) if column.fold else column for column in columns]
    return _table(bare, None).__rich_measure__(console, options.update(max_width=_UNBOUNDED)).maximum


def _words(cells: Sequence[str | Text]) -> list[str]:
    return [max(str(cell).split(), key=len, default="")[:_LONGEST] for cell in cells]


def _table(columns: Sequence[Column], title: str | None) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(
            column.name, justify=column.justify, no_wrap=not column.fold, overflow="fold" if column.fold else "ellipsis"
        )
    n_rows = max((len(column.cells) for column in columns), default=0)
    for row in range(n_rows):
        table.add_row(*(column.cells[row] for column in columns))
    return table
