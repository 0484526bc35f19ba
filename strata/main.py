"""The `strata` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from shared.core.errors import StrataError
from strata.commands import certs, compare, doctor, export, listings, log, plugins, report, run, runs, sweep, topology

_HELP = "StrataFL: a three-tier (cloud, edge, device) federated-learning simulator."

app = typer.Typer(name="strata", help=_HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for _command in (
    topology.up,
    run.run,
    runs.ls,
    runs.show,
    runs.groups,
    runs.watch,
    log.log,
    runs.pause,
    runs.resume,
    runs.stop,
    runs.pull,
    compare.compare,
    report.report,
    export.export,
    sweep.sweep,
    listings.algorithms,
    listings.agents,
    listings.edges,
    listings.twins,
    plugins.plugins,
    plugins.check,
    certs.identities,
    certs.revoke,
    doctor.doctor,
    topology.scale,
    topology.down,
):
    app.command()(_command)
app.add_typer(certs.certs)


def app_entry(arguments: Sequence[str] | None = None) -> None:
    """Run the command. A `StrataError` prints one red line; exit status 1 (2 for wrong usage, 130 for Ctrl-C)."""
    sys.path.append(os.getcwd())  # plug-ins are found in the working directory, too, last
    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="strata")
    except StrataError as error:
        from strata.output import print_error

        print_error(error)
        raise SystemExit(1) from None


if __name__ == "__main__":
    app_entry()
