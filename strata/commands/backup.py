"""A copy of what a running local topology keeps (`backup`)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from shared.core.errors import NotFound
from strata.launcher import home
from strata.options import Format, FormatOption


def backup(
    into: Annotated[Path, typer.Argument(metavar="FOLDER", help="The backup, a folder that is not there yet.")],
    format: FormatOption = Format.table,
) -> None:
    """Copy the state and the results of the topology that `strata up` runs here.

    All its processes stand still meanwhile, so what is copied belongs together, and then go on. `strata up --state-dir
    FOLDER/state --runs-dir FOLDER/runs`, with the numbers of edges, devices and agents that are printed, starts from
    the backup: its runs go on after their last committed round.
    """
    from strata.launcher.backup import RUNS, STATE, back_up, started_by
    from strata.output import print_json, stdout

    running = home.running()
    if running is None:
        raise NotFound("no `strata up` is running here; the state of one that has ended can be copied as it is")
    began = time.monotonic()
    # Not the launcher itself: a shell would take its terminal away.
    shape = back_up(Path(running.logs).parent, lambda: started_by(running.pid), into)
    took_s = time.monotonic() - began
    numbers = f"--edges {shape.edges} --devices {sum(shape.devices_per_agent)} --agents {len(shape.devices_per_agent)}"
    secure = " --secure" if shape.secure else ""
    restore = f"strata up --state-dir {into / STATE} --runs-dir {into / RUNS} {numbers}{secure}"
    if format is Format.json:
        print_json({"folder": str(into), "seconds": round(took_s, 3), "restore": restore}, indent=None)
        return
    stdout().print(f"copied into {into} within {took_s:.1f} s; to start from a copy of it:", highlight=False)
    stdout().print(f"  {restore}", highlight=False, soft_wrap=True, markup=False)
