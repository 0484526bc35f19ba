"""The `strata` command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from shared.core.errors import StrataError
from shared.core.os_errors import check_working_folder, of_system
from shared.core.versions import VERSION
from shared.runtime.streams import unbroken
from strata.commands import (
    backup,
    certs,
    compare,
    doctor,
    export,
    listings,
    log,
    new,
    plan,
    plugins,
    predict,
    profiles,
    prune,
    report,
    run,
    runs,
    slurm,
    sweep,
    tokens,
    topology,
)

_HELP = "StrataFL: a three-tier (cloud, edge, device) federated-learning simulator."

app = typer.Typer(name="strata", help=_HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _command in (
    topology.up,
    run.run,
    plan.plan,
    runs.ls,
    runs.show,
    runs.groups,
    runs.watch,
    log.log,
    runs.change,
    runs.pause,
    runs.resume,
    runs.stop,
    runs.rm,
    prune.prune,
    runs.pull,
    compare.compare,
    report.report,
    export.export,
    predict.predict,
    sweep.sweep,
    listings.experiments,
    listings.algorithms,
    listings.models,
    listings.datasets,
    listings.partitions,
    listings.agents,
    listings.edges,
    listings.twins,
    new.new,
    plugins.plugins,
    plugins.check,
    certs.identities,
    certs.revoke,
    doctor.doctor,
    topology.scale,
    backup.backup,
    topology.down,
):
    app.command()(_command)
app.add_typer(profiles.profiles)
app.add_typer(certs.certs)
app.add_typer(tokens.token)
app.add_typer(slurm.slurm)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stratafl {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    show: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options of the command itself."""


def app_entry(arguments: Sequence[str] | None = None) -> None:
    """Run the command; exit status 1 after an error, 2 for wrong usage, 130 for Ctrl-C.

    A `StrataError`, and what the operating system refuses, prints one red line. No command fails because its output has
    no reader.
    """
    with unbroken() as out:
        status = _status_of(arguments)
        out.flush()
        if out.failure is not None:  # the disk is full
            _print(out.failure)
            status = status or 1
    raise SystemExit(status)


def _status_of(arguments: Sequence[str] | None) -> int | str | None:
    try:
        check_working_folder()
        app(args=list(arguments) if arguments is not None else None, prog_name="strata")
    except SystemExit as ended:
        return ended.code
    except (StrataError, OSError) as error:
        _print(error)
        return 1
    return 0


def _print(error: StrataError | OSError) -> None:
    from strata.output import print_error

    print_error(error if isinstance(error, StrataError) else of_system(error))


if __name__ == "__main__":
    app_entry()
