"""Options that several commands share, and what they resolve to."""

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
ServerOption = Annotated[
    str | None, typer.Option("--url", help="Run there; else STRATA_URL, else on a local topology.")
]
AgentsOption = Annotated[
    int | None, typer.Option(min=1, help="Agent processes of the local topology; default: one a core.")
]
RunsDirOption = Annotated[Path, typer.Option("--runs-dir", help="Where results folders lie.")]
RunsArgument = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Ids, names (all runs of it), `latest`, folders of runs or sweeps."),
]
FetchOption = Annotated[
    str | None, typer.Option("--url", help="Fetch the runs from this cloud; else STRATA_URL; else they lie here.")
]
RunArgument = Annotated[str, typer.Argument(help="A run's id, or `latest`.")]

RUNS_DIR = Path("runs")


def named_url(url: str | None) -> str | None:
    """The cloud that the user named, by option or STRATA_URL."""
    return url or os.environ.get("STRATA_URL") or None


def server_of(url: str | None, agents: int | None) -> str | None:
    """The cloud that shall run something, None for a local topology, whose agents alone can be chosen.

    Raises:
        BadParameter: agents for a cloud that has its own.
    """
    cloud = named_url(url)
    if cloud and agents is not None:
        raise typer.BadParameter("--agents is for a local topology; the cloud of --url has its own")
    return cloud


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
    from strata.api.client import Client

    found = known_url(url)
    if found is None:
        raise NotFound("no cloud is known: start one with `strata up`, or name it with --url or STRATA_URL")
    return Client(found)
