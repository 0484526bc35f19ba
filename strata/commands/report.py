"""`strata report`: a report of runs as one HTML file, and their pictures as files for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from strata.options import RUNS_DIR, FetchOption, RunsArgument, RunsDirOption, named_url

_REPORT = "report.html"


class PictureFormat(StrEnum):
    """File formats of pictures: two vector formats and one bitmap format."""

    svg = "svg"
    pdf = "pdf"
    png = "png"


class Width(StrEnum):
    """Widths of pictures: one column of a journal (3.5 inches), or two (7.2 inches)."""

    single = "single"
    double = "double"


def report(
    runs: RunsArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File of the report; default: report.html in --runs-dir.")
    ] = None,
    round_no: Annotated[
        int | None,
        typer.Option("--round", min=1, help="The round whose timeline is shown; default: the slowest round."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Target value when several runs are compared, as in `strata compare`."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Write each picture into this folder; the report is then written only with --out."),
    ] = None,
    format: Annotated[
        PictureFormat, typer.Option("--format", help="Format of the pictures of --figures; png has 300 dpi.")
    ] = (PictureFormat.svg),
    width: Annotated[
        Width, typer.Option(help="Width of the pictures of --figures, in columns of a journal.")
    ] = Width.double,
    url: FetchOption = None,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Write a report: one HTML file with pictures, tables, spec, manifest and the commands to rerun.

    The file needs no network. A report of several runs begins with their comparison. The same results folders always
    give the same file.
    """
    from shared.core.files import write_file
    from shared.results.report.page import report as make_report
    from strata.output import stdout
    from strata.runs.download import results_folders

    console = stdout()
    with results_folders(runs, named_url(url), runs_dir) as folders:
        if figures is not None:
            paths = _write_figures(folders, figures, format.value, width.value, round_no, target)
            console.print(f"{len(paths)} pictures in {figures}", markup=False, highlight=False, soft_wrap=True)
        if figures is None or out is not None:
            path = out or runs_dir / _REPORT
            write_file(path, make_report(folders, target, round_no).encode())
            console.print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)


def _write_figures(
    folders: Sequence[Path], into: Path, form: str, width: str, round_no: int | None, target: float | None
) -> list[Path]:
    """Write the pictures; with several runs, those of each run into its own folder, and one comparison."""
    from shared.results.comparison import compare
    from shared.results.comparison_figure import draw_comparison
    from shared.results.matplotlib_figures import COLUMNS
    from shared.results.report.figures import write_pictures

    if len(folders) == 1:
        return write_pictures(folders[0], into, form, COLUMNS[width], round_no)
    found = [
        path
        for folder in folders
        for path in write_pictures(folder, into / folder.name, form, COLUMNS[width], round_no)
    ]
    picture = into / f"compare.{form}"
    return [*found, picture] if draw_comparison(picture, compare(folders, target)) else found
