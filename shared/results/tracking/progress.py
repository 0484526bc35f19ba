"""`tracking.json` of a results folder: how far its run has been brought to trackers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shared.core.records import Record
from shared.results.folder import write_file

FILE = "tracking.json"


class TrackerNote(Record):
    """What one tracker knows of a run.

    Attributes:
        status: of the run, as it was told, or as it was when the tracker was given up; None where it failed last time.
        rounds: as they were told.
        where: the run is found.
        reason: why the last attempt failed.
    """

    status: str | None = None
    rounds: int | None = None
    where: str | None = None
    reason: str | None = None


_NOTES = TypeAdapter(dict[str, TrackerNote])


def read_notes(folder: Path) -> dict[str, TrackerNote]:
    """By tracker, what is noted in a results folder; nothing where there is no such file, or it cannot be read."""
    try:
        return _NOTES.validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        return {}


def write_notes(folder: Path, notes: Mapping[str, TrackerNote]) -> None:
    """Note it."""
    told = {name: note.model_dump(mode="json") for name, note in sorted(notes.items())}
    write_file(folder / FILE, (json.dumps(told, indent=2) + "\n").encode())


def tracked_lines(folder: Path, trackers: Iterable[str]) -> list[str]:
    """How far the run of a results folder has been brought to its trackers, a line for each."""
    notes = read_notes(folder) if trackers else {}
    found = {tracker: notes.get(tracker, TrackerNote(reason="not told of it yet")) for tracker in trackers}
    return [f"{name}: {note.reason or f'{note.rounds} rounds at {note.where}'}" for name, note in found.items()]
