"""`strata compare`: compares runs by their results folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.options import RUNS_DIR, RunsDirOption, TableFormat, TableFormatOption

if TYPE_CHECKING:
    from shared.results.comparison import Comparison

_PICTURE = "compare.png"


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Run ids, names (all runs with that name), `latest`, or folders of runs or sweeps."
        ),
    ],
    target: Annotated[
        float | None,
        typer.Option(help="Value of the metric, such as accuracy 0.9; default: the best one that all runs reach."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="One of the runs' metrics; default: the headline metric of the first run.")
    ] = None,
    clients: Annotated[
        bool,
        typer.Option(
            "--clients",
            help="Judge every run by the mean over clients of the model that each would use, on its own test samples.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File of the picture (.png, .svg or .pdf); default: compare.png in --runs-dir.")
    ] = None,
    format: TableFormatOption = TableFormat.table,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Compare runs: a metric against rounds, simulated time and uploaded bytes, and the cost of a target value.

    Prints a table and draws a picture with three panels. It reads results folders (rounds.csv, run.json) and needs no
    cloud; `strata pull` fetches results folders from a cloud.
    """
    from shared.results.comparison import compare as lay_side_by_side
    from shared.results.comparison_figure import draw_comparison, file_format
    from shared.results.lookup import find_folders
    from strata.output import stderr

    picture = out or runs_dir / _PICTURE
    file_format(picture)  # rejects a wrong suffix before anything is read
    comparison = lay_side_by_side(find_folders(runs_dir, runs), target, metric, clients=clients)
    drawn = draw_comparison(picture, comparison)
    console = stderr()
    for remark in comparison.remarks:
        console.print(f"note: {remark}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if target is None and comparison.target is not None:
        found = f"target: {_value(comparison)}, the best {comparison.metric.label} that all runs reach"
        console.print(f"{found} (or set --target)", markup=False, highlight=False, soft_wrap=True)
    _print(comparison, picture if drawn else None, format)
    said = f"picture: {picture}" if drawn else "no picture: no run has been evaluated yet"
    console.print(said, markup=False, highlight=False, soft_wrap=True)


def _value(comparison: Comparison) -> str:
    target = comparison.target or 0.0
    return f"{100 * target:.4g} %" if comparison.metric.unit == "share" else f"{target:.4g}"


def _print(comparison: Comparison, picture: Path | None, format: TableFormat) -> None:
    from strata.comparison_table import comparison_rows, comparison_table
    from strata.output import print_csv, print_json, stdout

    if format is TableFormat.json:
        print_json(
            {
                "metric": comparison.metric.label,
                "target": comparison.target,
                "remarks": list(comparison.remarks),
                "picture": str(picture.resolve()) if picture else None,
                "runs": comparison_rows(comparison),
            }
        )
    elif format is TableFormat.csv:
        print_csv(comparison_rows(comparison))
    else:
        stdout().print(comparison_table(comparison))
