"""`tracking.json` of a results folder: what its trackers have of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shared.core.files import write_file
from shared.core.records import Record

FILE = "tracking.json"


class TrackerNote(Record):
    """What one tracker has of a run.

    Attributes:
        status: the run's status as last sent, or when the tracker was given up; None after a failed attempt.
        rounds: the number of rounds sent.
        where: the address or folder of the run.
        reason: why the last attempt failed.
    """

    status: str | None = None
    rounds: int | None = None
    where: str | None = None
    reason: str | None = None


_NOTES = TypeAdapter(dict[str, TrackerNote])


def read_notes(folder: Path) -> dict[str, TrackerNote]:
    """The notes of a results folder by tracker; empty if there is no file or it cannot be read."""
    try:
        return _NOTES.validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        return {}


def write_notes(folder: Path, notes: Mapping[str, TrackerNote]) -> None:
    """Replaces the notes of a results folder."""
    lines = {name: note.model_dump(mode="json") for name, note in sorted(notes.items())}
    write_file(folder / FILE, (json.dumps(lines, indent=2) + "\n").encode())


def tracked_lines(folder: Path, trackers: Iterable[str]) -> list[str]:
    """One line for each tracker: the rounds that it has and where, or why it has none and how to send them."""
    notes = read_notes(folder) if trackers else {}
    found = {tracker: notes.get(tracker, TrackerNote(reason="nothing sent yet")) for tracker in trackers}
    return [f"{name}: {_words(folder.name, name, note)}" for name, note in found.items()]


def _words(run: str, tracker: str, note: TrackerNote) -> str:
    if note.reason is None:
        return f"{note.rounds} rounds at {note.where}"
    how = f"`strata export {run} --to {tracker}`"
    return note.reason if how in note.reason else f"{note.reason}; {how} sends what is missing"
