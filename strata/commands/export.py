"""`strata export`: exports runs to other programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.options import RUNS_DIR, FetchOption, RunsArgument, RunsDirOption, named_url

if TYPE_CHECKING:
    from shared.results.tracking.scalars import Tracked


_EVERY_S = 10.0
"""Seconds between two exports of a run that is followed."""


class Target(StrEnum):
    """Destinations of an export."""

    tensorboard = "tensorboard"
    mlflow = "mlflow"
    csv = "csv"
    ndjson = "ndjson"
    onnx = "onnx"


def export(
    runs: RunsArgument,
    to: Annotated[Target, typer.Option(help="A tracker, a flat table with one row per round, or the model as ONNX.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="A folder for tensorboard (default: tensorboard in --runs-dir), a file for tables (default: stdout), "
            "a file for onnx (default: model.onnx in the results folder).",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="For onnx: another model of the run than its global one.")] = "global",
    experiment: Annotated[str, typer.Option(help="For mlflow: the experiment that the runs belong to.")] = "stratafl",
    follow: Annotated[
        bool, typer.Option(help="For trackers: keep exporting new rounds until the runs have ended.")
    ] = False,
    url: FetchOption = None,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Export the figures of each round, the parameters and the tags of runs. Exporting again updates the export.

    The command reads results folders and never changes a run, so an unreachable tracker cannot harm it. With --follow
    it then tries again; Ctrl-C ends the export while the runs go on.
    MLFLOW_TRACKING_URI names the server of mlflow (with MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD).
    """
    from shared.results.tracking.scalars import read_tracked
    from strata.output import print_text, stderr
    from strata.runs.download import results_folders

    if follow and to not in (Target.tensorboard, Target.mlflow):
        raise typer.BadParameter("--follow is for tensorboard and mlflow")
    if to is Target.onnx:
        with results_folders(runs, named_url(url), runs_dir, model=True) as folders:
            print_text(_to_onnx(folders, model, out))
        return
    while True:
        with results_folders(runs, named_url(url), runs_dir) as folders:
            found = [read_tracked(folder) for folder in folders]
        said = _exported(found, to, out, experiment, runs_dir, patient=follow)
        if said:
            stderr().print(said, markup=False, highlight=False, soft_wrap=True)
        if not follow or _all_ended(found):
            return
        time.sleep(_EVERY_S)


def _to_onnx(folders: Sequence[Path], model: str, out: Path | None) -> str:
    """Write the model of one run; the path of the file.

    Raises:
        BadParameter: several runs were named.
    """
    from shared.core.files import write_file
    from shared.results.onnx_export import to_onnx
    from shared.results.saved_model import saved_model

    if len(folders) != 1:
        raise typer.BadParameter(f"--to onnx is for one run, not {len(folders)}")
    path = out or folders[0] / ("model.onnx" if model == "global" else f"models/{model}.onnx")
    write_file(path, to_onnx(saved_model(folders[0], model)))
    return f"{path}\n"


def _exported(
    found: Sequence[Tracked], to: Target, out: Path | None, experiment: str, runs_dir: Path, *, patient: bool
) -> str:
    """Export once and return the message to print. `patient` tolerates an unreachable server before the end."""
    from shared.core.errors import Unreachable

    if to is Target.tensorboard:
        return _to_tensorboard(found, out or runs_dir / "tensorboard")
    if to is not Target.mlflow:
        return _to_table(found, to, out)
    try:
        return _to_mlflow(found, experiment)
    except Unreachable as error:
        if not patient or _all_ended(found):
            raise
        return f"{error.detail}; trying again in {_EVERY_S:g} s"


def _all_ended(found: Sequence[Tracked]) -> bool:
    from shared.run_records.runs import FINAL

    return all(tracked.info.status in FINAL for tracked in found)


def _to_mlflow(found: Sequence[Tracked], experiment: str) -> str:
    import asyncio

    from shared.results.tracking.mlflow import MlflowServer, tracking_uri

    async def write() -> str:
        async with MlflowServer(tracking_uri()) as server:
            for tracked in found:
                await server.write(tracked, experiment)
        return server.address

    return f"{len(found)} runs in experiment {experiment} at {asyncio.run(write())}"


def _to_tensorboard(found: Sequence[Tracked], folder: Path) -> str:
    from shared.results.tracking.tensorboard import write_tensorboard

    for tracked in found:
        write_tensorboard(tracked, folder / tracked.info.run)
    return f"{len(found)} runs in {folder}; to view them: tensorboard --logdir {folder}"


def _to_table(found: Sequence[Tracked], to: Target, out: Path | None) -> str:
    from shared.core.files import write_file
    from shared.core.formatting import csv_text
    from strata.output import json_text, print_text

    rows: list[dict[str, Any]] = [
        {
            "run": tracked.info.run,
            "name": tracked.info.name,
            "round_no": step.round_no,
            "kind": step.kind,
            **step.figures,
        }
        for tracked in found
        for step in tracked.steps
    ]
    if to is Target.csv:
        columns = dict.fromkeys(name for row in rows for name in row)
        text = csv_text([{name: row.get(name) for name in columns} for row in rows])
    else:
        text = "".join(json_text(row) + "\n" for row in rows)
    if out is None:
        print_text(text)
        return ""
    write_file(out, text.encode())
    return f"{len(rows)} rows in {out}"
