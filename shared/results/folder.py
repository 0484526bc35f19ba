"""The files of a results folder, reading them, and writing the record of its run."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from shared.core.errors import NotFound
from shared.core.field_errors import told
from shared.core.files import write_file
from shared.core.records import Record
from shared.results.writer_lock import abandoned
from shared.run_records.older_records import run_of
from shared.run_records.rounds import EdgeRow, RoundDetail, RoundInfo
from shared.run_records.runs import FINAL, RunInfo
from shared.run_records.visits import VisitRow

RUN = "run.json"
"""Written last: once it says that a run has ended, all other files are complete."""
SETTLED = FINAL | {"paused"}
"""Statuses that stay what they are when the cloud ends."""
UNRECORDED = "the cloud that ran it has ended, and could not record why"
MODEL, BEST_MODEL = "model.safetensors", "model_best.safetensors"
ROUNDS, LINKS = "rounds.csv", "links.csv"
DEVICES = "devices.ndjson"
EDGES = "edges.ndjson"
SEATS = "seats.ndjson"
GROUPS = "groups.csv"
PREPROCESSING = "preprocessing.json"
MODELS = "models"
"""The folder of further models than the global ones."""
R = TypeVar("R", bound=Record)
BLOCK = 2**16
MAX_CELL_CHARS = 2**27
"""Characters that a table's cell may have: a round in which 100,000 seats fail needs some 12 million."""
ROUND_FIELDS = tuple(name for name in RoundInfo.model_fields if name != "edges")
"""Fields of a round that have a column of their name in `rounds.csv`; edges are in `edges.ndjson`."""


class ResultsUnreadable(NotFound):
    """Results are there, but they are damaged, of another version, or not for this user (404); the message says it."""

    code = "results_unreadable"


def model_path(folder: Path, name: str) -> Path:
    """The file of one of a run's models.

    Raises:
        NotFound: no file can have this name.
    """
    if name in ("global", "best"):
        return folder / (MODEL if name == "global" else BEST_MODEL)
    if Path(name).name != name or name.startswith("."):
        raise NotFound(f"{name!r:.80} names no model")
    return folder / MODELS / f"{name}.safetensors"


def no_model(folder: Path, name: str) -> NotFound:
    """Returns the error for a model that a results folder lacks; it names those there, and why the run ended."""
    there = sorted(file.stem for file in (folder / MODELS).glob("*.safetensors"))
    known = [*(each for each in ("global", "best") if model_path(folder, each).exists()), *there]
    try:
        info = read_run(folder)
        why = f"; its run is {info.status}{f': {info.reason}' if info.reason else ''}"
    except NotFound:
        why = ""
    return NotFound(f"{folder} holds no model {name!r}; it has {', '.join(known) or 'none'}{why}")


def read_last_line(path: Path) -> bytes:
    """The last line with its end, of a file of any length; without a line end if it is incomplete."""
    with path.open("rb") as file:
        end = begin = file.seek(0, os.SEEK_END)
        tail = b""
        while begin and tail.rfind(b"\n", 0, -1) < 0:
            begin = max(begin - BLOCK, 0)
            file.seek(begin)
            tail = file.read(end - begin)
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]


def file_names(folder: Path) -> list[str]:
    """Names of the files of a results folder, relative to it, sorted; files being written are left out."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(path.relative_to(folder).as_posix() for path in found)


def read_run(folder: Path) -> RunInfo:
    """The run of a results folder. One whose cloud has ended without recording an end is recorded as `stopped`.

    Raises:
        NotFound: the folder holds no `run.json`.
        ResultsUnreadable: it holds one that this version cannot read.
    """
    info = _recorded(folder)
    return info if info.status in SETTLED else with_end(folder, UNRECORDED)


def with_end(folder: Path, reason: str) -> RunInfo:
    """The run of a results folder; if it has not ended, but its cloud has, it is recorded as `stopped` for a reason.

    Raises:
        NotFound: as `read_run`.
    """
    info = _recorded(folder)
    with contextlib.suppress(OSError), abandoned(folder) as ended:
        info = _recorded(folder)
        if ended and info.status not in SETTLED:
            info = info.replace(status="stopped", reason=f"interrupted: {reason}"[:2000])
            write_record(folder, info)
    return info


def write_record(folder: Path, info: RunInfo) -> None:
    """Writes `run.json` alone."""
    content = (json.dumps(info.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n").encode()
    write_file(folder / RUN, content, durable=info.status in FINAL)


def _recorded(folder: Path) -> RunInfo:
    path = folder / RUN
    try:
        return run_of(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"no results in {folder}: it holds no {RUN}") from None
    except OSError as error:
        raise ResultsUnreadable(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        kind = "damaged" if error.errors()[0]["type"] == "json_invalid" else "of another version"
        raise ResultsUnreadable(f"{path} is {kind}: {told(error)}") from None


def read_rounds(folder: Path) -> tuple[RoundInfo, ...]:
    """The rounds of a results folder, in order, without the rows of edges; empty before the first round.

    Raises:
        NotFound: the file cannot be read; names line, field and cause.
    """
    path = folder / ROUNDS
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from None
    csv.field_size_limit(MAX_CELL_CHARS)  # for the whole process; the default is 131,072 characters
    whole = content[: content.rfind(b"\n") + 1]  # a crash may have left the last line incomplete
    header: list[str] = []
    found = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            cells = next(csv.reader([line.decode()]))  # no cell holds a line break
            if header and cells:
                found.append(RoundInfo.model_validate(_values(dict(zip(header, cells, strict=False))), strict=False))
        except (ValueError, csv.Error) as error:
            raise NotFound(f"{path}, line {number}: {told(error)}") from None
        header = header or cells
    return tuple(found)


def read_round(folder: Path, round_no: int) -> RoundDetail:
    """One training round of a results folder, with a row for each visit and each edge.

    Rows of edges are missing in folders of earlier versions, and in rounds that are still being written.

    Raises:
        NotFound: there is no such round, or a file cannot be read.
    """
    found = next((row for row in read_rounds(folder) if (row.round_no, row.kind) == (round_no, "train")), None)
    if found is None:
        raise NotFound(f"no round {round_no} in {folder}")
    seats = _rows_of_round(folder / DEVICES, round_no, VisitRow)
    edges = _rows_of_round(folder / EDGES, round_no, EdgeRow) if (folder / EDGES).exists() else []
    return RoundDetail.model_validate({**found.model_dump(), "seats": seats, "edges": edges})


def _rows_of_round(path: Path, round_no: int, kind: type[R]) -> list[R]:
    """The rows of one training round; an incomplete last line (after a crash) is ignored."""
    begin = f'{{"round_no":{round_no},"kind":"train",'.encode()
    try:
        with path.open("rb") as file:
            rows = [json.loads(line) for line in file if line.startswith(begin) and line.endswith(b"\n")]
        return [kind.model_validate({name: row[name] for name in kind.model_fields if name in row}) for row in rows]
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise NotFound(f"{path}, round {round_no}: {told(error)}") from None


def _values(row: dict[str, str]) -> dict[str, Any]:
    """A line of `rounds.csv` as fields; an empty cell leaves a field at its default."""
    filled = {name: row[name] for name in ROUND_FIELDS if row.get(name)}
    return {name: _structure(name, cell) if cell[0] in "[{" else cell for name, cell in filled.items()}


def _structure(name: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: broken JSON: {error}") from None


def summary(info: RunInfo, folder: Path | None) -> dict[str, Any]:
    """The fields of a run that `--format json` prints: the same for a run from the API and from a folder."""
    return {
        "run": info.run,
        "name": info.name,
        "owner": info.owner_name,
        "algorithm": info.algorithm,
        "status": info.status,
        "reason": info.reason,
        "rounds": info.rounds,
        "num_rounds": info.num_rounds,
        "accuracy": info.accuracy,
        "accuracy_of": info.accuracy_of,
        "loss": info.loss,
        "scores": {metric.label: info.value(metric) for metric in info.metrics},
        "bytes_up": info.bytes_up,
        "bytes_down": info.bytes_down,
        "wall_s": info.wall_s,
        "simulated_s": info.simulated_s,
        "model_sha256": info.model_sha256,
        "results": str(folder.resolve()) if folder is not None else None,
    }
