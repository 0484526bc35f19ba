"""`strata predict`: what the trained model of a run says of new samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.options import RUNS_DIR, FetchOption, RunsDirOption, named_url

if TYPE_CHECKING:
    from shared.training.inference import Predictions


def predict(
    run: Annotated[str, typer.Argument(help="A run id, name, `latest`, or a results folder.")],
    samples: Annotated[Path, typer.Argument(help="A table, an .npz with the key x, an image, or a folder of images.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file, .csv or .ndjson; default: CSV on stdout.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="Another model of the run than its global one, such as edge-0.")
    ] = "global",
    url: FetchOption = None,
    runs_dir: RunsDirOption = RUNS_DIR,
) -> None:
    """Predict with the model of a run: a row for each sample, with class names and probabilities, or with numbers.

    Samples are read and preprocessed as the training data were; columns that the model does not know are not used. A
    cell, image or array that cannot be read so is refused by its line, file or key.
    """
    from shared.core.files import write_file
    from shared.core.formatting import csv_text
    from shared.results.saved_model import saved_model
    from shared.training.data.unseen import unseen
    from strata.output import json_text, print_text, stderr
    from strata.runs.download import results_folders

    with results_folders([run], named_url(url), runs_dir, model=True) as folders:
        trained = saved_model(folders[-1], model)
    given = unseen(samples, trained.preprocessing)
    rows = _rows(trained.predict(given.x), given.files)
    if given.ignored:
        said = f"columns that the model does not use: {', '.join(given.ignored)}"
        stderr().print(said, markup=False, highlight=False, soft_wrap=True)
    as_json = out is not None and out.suffix == ".ndjson"
    text = "".join(json_text(row) + "\n" for row in rows) if as_json else csv_text(rows)
    if out is None:
        print_text(text)
        return
    write_file(out, text.encode())
    stderr().print(f"{len(rows)} rows in {out}", markup=False, highlight=False, soft_wrap=True)


def _rows(found: Predictions, files: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = list(found.rows())
    return [{"file": file, **row} for file, row in zip(files, rows, strict=True)] if files else rows
