"""`strata doctor`: checks this machine and says what to do about each problem."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from strata.options import RUNS_DIR, Format, FormatOption, UrlOption, known_url

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    url: UrlOption = None,
    format: FormatOption = Format.table,
    runs_dir: Annotated[
        Path,
        typer.Option("--runs-dir", readable=False, help="The folder that contains the results folders."),
    ] = RUNS_DIR,
) -> None:
    """Check that this machine can run experiments: versions, Redis, data sets, cores, memory, disk, Docker, topology.

    Exit status 1 if a check fails without which no run is possible.
    """
    from strata.doctor import check_all
    from strata.output import print_json, stdout

    checks = check_all(known_url(url), Path(runs_dir))
    if format is Format.json:
        print_json([asdict(check) for check in checks])
    else:
        table = Table("check", "", "found", "what to do")
        for check in checks:
            table.add_row(check.name, Text(check.state, _STYLES[check.state]), Text(check.found), Text(check.todo))
        stdout().print(table)
    raise typer.Exit(1 if any(check.state == "fail" for check in checks) else 0)
