"""What the commands print: results on stdout, progress and errors on stderr, numbers for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from shared.core.errors import StrataError
from shared.core.formatting import duration as duration
from shared.core.formatting import number as number
from shared.core.formatting import percent as percent
from shared.core.formatting import size as size

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
