"""Options that several commands share, and the values that they resolve to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.connection import known_url as known_url
from strata.connection import named_url as named_url
from strata.connection import note_of_another

if TYPE_CHECKING:
    from strata.api.client import Client
    from strata.spec_files import SpecSource


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
    str | None,
    typer.Option(
        "--url", help="Run on this cloud; default: STRATA_URL, that of `strata up`, else a local topology is started."
    ),
]
LocalOption = Annotated[bool, typer.Option("--local", help="Start a local topology, also where `strata up` runs.")]
AgentsOption = Annotated[
    int | None, typer.Option(min=1, help="Number of agent processes of the local topology; default: one per core.")
]
AgentsPerGpuOption = Annotated[
    int, typer.Option(min=0, help="Agents that share a GPU, each of which sees that one alone; 0: each sees all.")
]
SpecArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SPEC",
        show_default=False,
        help="The name of an experiment (`strata experiments` lists them), or a YAML or JSON file. Without one, the "
        "fields that follow make the spec.",
    ),
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
RunArgument = Annotated[str, typer.Argument(help="A run id, `latest`, or the name of one run.")]
ReadRunArgument = Annotated[
    str, typer.Argument(help="A run id, `latest`, or the name of a run that has a results folder.")
]

RUNS_DIR = Path("runs")
_FIELD = re.compile(r"[A-Za-z_][\w.]*=")


def spec_and_fields(first: str | None, fields: Sequence[str], form: str) -> tuple[SpecSource, list[str]]:
    """The spec that arguments name, and those that set fields: a first argument `key=...` is a field, not a spec.

    Raises:
        BadParameter: neither a spec nor a field is named, or a later argument is no field.
    """
    if first is None:
        known = "the name of an experiment (`strata experiments` lists them), a spec's file, or fields"
        raise typer.BadParameter(f"name what to run: {known} such as data=digits")
    source: SpecSource = first
    if _FIELD.match(first) and not Path(first).is_file():
        source, fields = {}, [first, *fields]
    for field in fields:
        if not field.partition("=")[0] or "=" not in field:
            raise typer.BadParameter(f"{form}, not {field!r}")
    return source, list(fields)


def connect(url: str | None) -> Client:
    """A client of the cloud that the user named, else of a running `strata up`; says so if that is another user's.

    Raises:
        NotFound: no cloud was named and none runs here.
    """
    from strata import connection

    client = connection.connect(url)
    say_of_another(url)
    return client


def say_of_another(url: str | None) -> None:
    """Say on stderr if the running `strata up` that would be used is another user's, or one may be hidden."""
    from strata.output import stderr

    if note := note_of_another(url):
        stderr().print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)


def server_of(url: str | None, agents: int | None, local: bool = False, agents_per_gpu: int = 0) -> str | None:
    """The cloud on which to run: the named one, else that of a running `strata up`; None for a topology of its own.

    Args:
        url: as given.
        agents: the number of agents, which only a topology of its own has.
        local: whether a topology of its own is wanted.
        agents_per_gpu: how many of its agents share a GPU; 0 if not given.

    Raises:
        BadParameter: a cloud was named, and what only a topology of its own has was given too.
    """
    own = local or agents is not None or agents_per_gpu > 0
    if named_url(url) and own:
        given = "--local" if local else "--agents" if agents is not None else "--agents-per-gpu"
        raise typer.BadParameter(f"{given} is for a topology of its own; the cloud given by --url has its own agents")
    return None if own else known_url(url)
