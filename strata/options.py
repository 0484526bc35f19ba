"""Options that several commands share, and the values that they resolve to."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.core.errors import NotFound
from strata.launcher import home

if TYPE_CHECKING:
    from strata.api.client import Client


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


def named_url(url: str | None) -> str | None:
    """The cloud that the user named, by option or STRATA_URL."""
    return url or os.environ.get("STRATA_URL") or None


def server_of(url: str | None, agents: int | None) -> str | None:
    """The cloud on which to run, None for a local topology. Only a local topology lets the user choose `agents`.

    Raises:
        BadParameter: both a cloud and a number of agents were given.
    """
    cloud = named_url(url)
    if cloud and agents is not None:
        raise typer.BadParameter("--agents is only for a local topology; the cloud given by --url has its own agents")
    return cloud


def known_url(url: str | None) -> str | None:
    """The cloud that the user named, else the one of a running `strata up`."""
    named = named_url(url)
    if named:
        return named
    running = home.running()
    return running.url if running else None


def connect(url: str | None) -> Client:
    """A client of the cloud that the user named, else of a running `strata up`.

    Raises:
        NotFound: no cloud was named and none runs here.
    """
    from strata.api.client import Client

    found, running = known_url(url), home.running()
    if found is None:
        raise NotFound("no cloud found: start one with `strata up`, or give its address with --url or STRATA_URL")
    known = running is not None and running.url == found and running.authority
    return Client(found, authority=Path(running.authority) if running and known else None)
