"""Options that several commands share, and the values that they resolve to."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from strata.connection import connect as connect
from strata.connection import known_url as known_url
from strata.connection import named_url as named_url


class Format(StrEnum):
    """Output formats of a command."""

    table = "table"
    json = "json"


class TableFormat(StrEnum):
    """Output formats of a command that prints a table."""

    table = "table"
    json = "json"
    csv = "csv"


FormatOption = Annotated[Format, typer.Option("--format", help="Print a table for people, or one JSON value.")]
TableFormatOption = Annotated[
    TableFormat, typer.Option("--format", help="Print a table for people, one JSON value, or CSV.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Address of the cloud; default: STRATA_URL, else the cloud of `strata up`.")
]
ServerOption = Annotated[
    str | None, typer.Option("--url", help="Run on this cloud; default: STRATA_URL, else a local topology is started.")
]
AgentsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of agent processes of the local topology; default: one per core.")
]
RunsDirOption = Annotated[Path, typer.Option("--runs-dir", help="The folder that contains the results folders.")]
RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...", help="Run ids, names (all runs with that name), `latest`, or folders of runs or sweeps."
    ),
]
FetchOption = Annotated[
    str | None,
    typer.Option("--url", help="Fetch the runs from this cloud; default: STRATA_URL, else read local folders."),
]
RunArgument = Annotated[str, typer.Argument(help="A run id, or `latest`.")]

RUNS_DIR = Path("runs")


def server_of(url: str | None, agents: int | None) -> str | None:
    """The cloud on which to run, None for a local topology. Only a local topology lets the user choose `agents`.

    Raises:
        BadParameter: both a cloud and a number of agents were given.
    """
    cloud = named_url(url)
    if cloud and agents is not None:
        raise typer.BadParameter("--agents is only for a local topology; the cloud given by --url has its own agents")
    return cloud
