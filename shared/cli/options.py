"""Options that several commands share, and what they resolve to."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli import home
from shared.errors import NotFound

if TYPE_CHECKING:
    from shared.cli.client import Client


class Format(StrEnum):
    """How a command prints."""

    table = "table"
    json = "json"


class TableFormat(StrEnum):
    """How a command prints a table."""

    table = "table"
    json = "json"
    csv = "csv"


FormatOption = Annotated[Format, typer.Option("--format", help="For people, or one JSON value.")]
TableFormatOption = Annotated[TableFormat, typer.Option("--format", help="For people, one JSON value, or CSV.")]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="The cloud; else STRATA_URL, else what `strata up` started.")
]
RunsDirOption = Annotated[Path, typer.Option("--runs-dir", help="Where results folders lie.")]
RunArgument = Annotated[str, typer.Argument(help="A run's id, or `latest`.")]

RUNS_DIR = Path("runs")


def named_url(url: str | None) -> str | None:
    """The cloud that the user named, by option or STRATA_URL."""
    return url or os.environ.get("STRATA_URL") or None


def known_url(url: str | None) -> str | None:
    """The cloud that the user named, else the one of a running `strata up`."""
    named = named_url(url)
    if named:
        return named
    running = home.running()
    return running.url if running else None


def connect(url: str | None) -> Client:
    """A client of the cloud that is named or running.

    Raises:
        NotFound: neither is there.
    """
    from shared.cli.client import Client

    found = known_url(url)
    if found is None:
        raise NotFound("no cloud is known: start one with `strata up`, or name it with --url or STRATA_URL")
    return Client(found)
