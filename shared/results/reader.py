"""Reads the records of a run from its results folder, and makes its pictures."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from shared.core.errors import NotFound, UnknownName
from shared.core.field_errors import told
from shared.core.records import Record
from shared.plots.algorithm_pictures import Pictures
from shared.plots.classes import classes
from shared.plots.curves import bytes_on_links, clients, scores
from shared.plots.history import RunHistory, VisitSummary
from shared.plots.picture import Picture
from shared.results.folder import DEVICES, EDGES, SEATS, read_rounds, read_run
from shared.run_records.rounds import EdgeRow
from shared.run_records.runs import RunInfo, SeatInfo
from shared.run_records.visits import VisitRow

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Record)


def read_history(folder: Path, info: RunInfo | None = None) -> RunHistory:
    """The records of a results folder so far; `info`: a newer record of the run than that in `run.json`.

    Raises:
        NotFound: the folder holds no run, or a file cannot be read.
    """
    return RunHistory(info or read_run(folder), read_rounds(folder), tuple(_visits(folder / DEVICES)))


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a file of JSON objects, with their numbers; an incomplete last line (after a crash) is ignored.

    Raises:
        NotFound: the file cannot be read, or a line is not an object; names it. A missing file counts as empty.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise NotFound(f"{path}, line {number}: {error}") from None
        if not isinstance(row, dict):
            raise NotFound(f"{path}, line {number}: no object")
        yield number, row


def _visits(path: Path) -> Iterator[VisitSummary]:
    """Visits of training rounds."""
    for number, row in rows_of(path):
        try:
            if row["kind"] == "train":
                rest = (row.get("label"), row.get("figures") or {}, row.get("reason"))
                yield VisitSummary(row["round_no"], row["seat"], row["edge"], row["outcome"], *rest)
        except (LookupError, TypeError) as error:
            raise NotFound(f"{path}, line {number}: {error}") from None


def _as(kind: type[R], row: dict[str, Any], where: str) -> R:
    """A row of a table as a record, without its further fields."""
    try:
        return kind.model_validate({name: row[name] for name in kind.model_fields if name in row})
    except ValidationError as error:
        raise NotFound(f"{where}: {told(error)}") from None


def read_visits(folder: Path, kind: str | None = None) -> Iterator[tuple[str, VisitRow]]:
    """The visits of a results folder, each with the kind of its round; of all kinds, or of one.

    Raises:
        NotFound: the file cannot be read; names the line.
    """
    path = folder / DEVICES
    for number, row in rows_of(path):
        if kind in (None, row.get("kind")):
            yield str(row.get("kind")), _as(VisitRow, row, f"{path}, line {number}")


class EdgeRound(NamedTuple):
    """An edge in a round, by the number and kind of the round."""

    round_no: int
    kind: str
    row: EdgeRow


def read_edges(folder: Path) -> Iterator[EdgeRound]:
    """Every edge in every round; empty for rounds that an earlier version wrote.

    Raises:
        NotFound: the file cannot be read; names the line.
    """
    path = folder / EDGES
    for number, row in rows_of(path):
        edge = _as(EdgeRow, row, f"{path}, line {number}")
        try:
            yield EdgeRound(int(row["round_no"]), str(row["kind"]), edge)
        except (LookupError, TypeError, ValueError) as error:
            raise NotFound(f"{path}, line {number}: {type(error).__name__}: {error}") from None


def read_seats(folder: Path) -> tuple[SeatInfo, ...]:
    """The seats of a run at its start; empty if the folder does not list them.

    Raises:
        NotFound: the file cannot be read; names the line.
    """
    path, found = folder / SEATS, []
    for number, row in rows_of(path):
        try:
            found.append(SeatInfo.model_validate(row, strict=False))
        except ValidationError as error:
            raise NotFound(f"{path}, line {number}: {told(error)}") from None
    return tuple(found)


def pictures_of(history: RunHistory) -> list[Picture]:
    """The pictures of every run, as far as it has values for them, and those of its algorithm."""
    usual = [scores(history), bytes_on_links(history), clients(history), classes(history)]
    return [*(picture for picture in usual if picture is not None), *own_pictures(history)]


def own_pictures(history: RunHistory) -> list[Picture]:
    """The pictures of the run's algorithm; empty if the algorithm is missing or fails, since a picture stops no run."""
    from shared.federation.registry import pictures_of_algorithm  # loads torch

    try:
        pictures: Pictures | None = pictures_of_algorithm(history.info.algorithm)
        return list(pictures(history)) if pictures else []
    except UnknownName:  # a plug-in that is not installed here
        return []
    except Exception:
        log.exception("the pictures of %s could not be made", history.info.algorithm)
        return []
