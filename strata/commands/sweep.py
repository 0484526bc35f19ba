"""`strata sweep`: runs every combination of the values of some fields."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.launcher.signals import as_interrupt, status_of
from strata.options import (
    RUNS_DIR,
    AgentsOption,
    RunsDirOption,
    ServerOption,
    SpecArgument,
    TableFormat,
    TableFormatOption,
    server_of,
    spec_and_fields,
)

if TYPE_CHECKING:
    from shared.results.sweeps import SweepFolder
    from shared.spec.run import RunSpec
    from strata.spec_files import SpecSource

_PICTURE = "compare.png"


def sweep(
    spec: SpecArgument = None,
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=V1,V2...", help="Fields and their values, such as lr=0.05,0.1 partition.alpha=0.1,1"
        ),
    ] = None,
    url: ServerOption = None,
    agents: AgentsOption = None,
    parallel: Annotated[
        int, typer.Option(min=1, max=64, help="Runs that train side by side; a cloud at --url has a limit of its own.")
    ] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the combinations without running them.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the sweep; default: a folder in --runs-dir with a name derived from its combinations."
        ),
    ] = None,
    format: TableFormatOption = TableFormat.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Run every combination of the given values, in order, and collect the results in one table and picture.

    Started again with the same arguments, the command skips completed combinations, continues interrupted ones and
    repeats failed ones. All specs are checked before the first run. Without --url, all combinations run on one local
    topology, as large as the largest of them needs. Exit status 0 only if every combination completed.
    """
    from strata.sweeps.runner import run_locally

    cloud = server_of(url, agents)
    source, fields = spec_and_fields(spec, keys or [], "a key to sweep has the form key=v1,v2")
    if not fields:
        raise typer.BadParameter("name the fields to vary, such as lr=0.05,0.1")
    specs, folder = _planned(source, fields, into, runs_dir, local=not cloud)
    if dry_run:
        _print_plan(folder, format)
        return
    interrupted = 0
    with as_interrupt():
        try:
            if folder.todo():
                if cloud:
                    interrupted = _on_cloud(cloud, specs, folder, parallel)
                else:
                    interrupted = run_locally(specs, folder, agents=agents, parallel=parallel)
        except KeyboardInterrupt as interrupt:  # between two runs; the folder already holds all results so far
            interrupted = status_of(interrupt)
    raise typer.Exit(_report(folder, format, interrupted))


def _planned(
    spec: SpecSource, keys: list[str], into: Path | None, runs_dir: Path, *, local: bool
) -> tuple[list[RunSpec], SweepFolder]:
    """The specs of all combinations, and the new or existing folder of their sweep."""
    from strata.runs.spec_check import checked
    from strata.sweeps.grid import combinations_of
    from strata.sweeps.runner import planned

    combinations = combinations_of(spec, keys, checked if local else lambda spec: spec)
    return planned(combinations, [*([spec] if isinstance(spec, str) else []), *keys], into, runs_dir)


def _on_cloud(url: str, specs: list[RunSpec], folder: SweepFolder, parallel: int) -> int:
    from strata.api.client import Client
    from strata.sweeps.runner import from_cloud, run_all

    with Client(url) as client:
        return run_all(client, specs, folder, fetch=from_cloud(client, folder.runs_dir), parallel=parallel)


def _print_plan(folder: SweepFolder, format: TableFormat) -> None:
    from strata.output import print_csv, print_json, stderr, stdout
    from strata.sweeps.tables import plan_rows, plan_table

    sweep = folder.sweep
    if format is TableFormat.table:
        stdout().print(plan_table(sweep))
    else:
        (print_json if format is TableFormat.json else print_csv)(plan_rows(sweep))
    remaining = f"{len(folder.todo())} of {len(sweep.combinations)} combinations to run, into {folder.path}"
    stderr().print(remaining, markup=False, highlight=False, soft_wrap=True)


def _report(folder: SweepFolder, format: TableFormat, interrupted: int) -> int:
    """Write and print the results, and return the exit status."""
    from shared.results.sweeps import mean_rows, result_rows
    from strata.output import print_csv, print_json, stderr, stdout
    from strata.sweeps.tables import results_table

    picture = _draw(folder)
    folder.write_tables()
    rows = folder.rows()
    if format is TableFormat.json:
        found = {"folder": str(folder.path.resolve()), "runs": result_rows(rows), "over_seeds": mean_rows(rows)}
        print_json(found, indent=None)
    elif format is TableFormat.csv:
        print_csv(result_rows(rows))
    else:
        stdout().print(results_table(folder.sweep, rows))
    console = stderr() if format is not TableFormat.table else stdout()
    console.print(f"sweep: {folder.path}", markup=False, highlight=False, soft_wrap=True)
    if picture:
        console.print(f"picture: {picture}", markup=False, highlight=False, soft_wrap=True)
    if interrupted:
        console.print("interrupted; run the same command again to continue", highlight=False)
        return interrupted
    return 1 if folder.todo() else 0


def _draw(folder: SweepFolder) -> Path | None:
    """Draw the picture of all runs that have results and return its path, None if none has been evaluated."""
    from shared.results.comparison_figure import draw_comparison
    from strata.sweeps.runner import compared

    comparison = compared(folder)
    picture = folder.path / _PICTURE
    return picture if comparison and draw_comparison(picture, comparison) else None
