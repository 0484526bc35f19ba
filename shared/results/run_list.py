"""The runs below a folder of results: those that can be read, newest first, and the others with the reason."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.core.errors import NotFound
from shared.core.os_errors import of_system
from shared.results.folder import RUN, ResultsUnreadable, read_run
from shared.run_records.run_order import sequence_of, sequence_of_id
from shared.run_records.runs import RunInfo, RunPage, UnreadableRun

log = logging.getLogger(__name__)
_RUN_ID = re.compile(r"r\d{8}-\d{6}-[0-9a-f]{4}")
"""A folder of this name was made for a run, also if it holds no record of it."""


@dataclass(frozen=True)
class Unreadable:
    """The folder of a run that this version cannot read, as far as its record can be understood."""

    folder: Path
    name: str
    sequence: int
    listed: UnreadableRun

    @property
    def words(self) -> tuple[str, str, str]:
        """By what a user may name it: its folder, its id and its name."""
        return self.folder.name, self.listed.run, self.name


@dataclass(frozen=True)
class RunList:
    """The runs below a folder, newest first."""

    runs_dir: Path
    runs: tuple[tuple[Path, RunInfo], ...]
    unreadable: tuple[Unreadable, ...]

    def page(self, limit: int, owner: str | None = None) -> RunPage:
        """Returns the newest runs, of one owner (`admin`: those without) if named, as a cloud lists its own."""
        runs = [info for _, info in self.runs if owner in (None, info.owner_name)]
        places: list[tuple[tuple[int, str], RunInfo | UnreadableRun]] = [(info.order, info) for info in runs]
        places += [((each.sequence, each.listed.run), each.listed) for each in self.unreadable]
        newest = [run for _, run in sorted(places, key=lambda place: place[0], reverse=True)][:limit]
        return RunPage(
            runs=tuple(run for run in newest if isinstance(run, RunInfo)),
            unreadable=tuple(run for run in newest if isinstance(run, UnreadableRun)),
        )

    def newest(self) -> Path:
        """Returns the folder of the newest run that can be read; a newer one that cannot be is logged.

        Raises:
            NotFound: there is none; ResultsUnreadable: none can be read; gives the reason of the newest.
        """
        if not self.runs:
            if not self.unreadable:
                raise NotFound(f"no run in {self.runs_dir}")
            n, newest = len(self.unreadable), self.unreadable[0].listed
            have = f"none of {n} runs in {self.runs_dir} can be read"
            raise ResultsUnreadable(f"{have}; the newest, {newest.run}: {newest.reason}")
        folder, info = self.runs[0]
        self._skip([each for each in self.unreadable if (each.sequence, each.listed.run) > info.order])
        return folder

    def named(self, name: str) -> list[Path]:
        """Returns the folders of all runs of a name, the oldest first, if any; one that cannot be read is logged.

        Raises:
            ResultsUnreadable: there are some, and none can be read; gives the reason of one.
        """
        found = [folder for folder, info in reversed(self.runs) if info.name == name]
        lost = [each for each in self.unreadable if name in each.words]
        if lost and not found:
            raise ResultsUnreadable(lost[0].listed.reason)
        self._skip(lost)
        return found

    def _skip(self, unreadable: Sequence[Unreadable]) -> None:
        for each in unreadable:
            log.warning("run %s is left out: %s", each.listed.run, each.listed.reason)


def runs_in(runs_dir: Path) -> RunList:
    """Returns all runs below a folder; without such a folder there are none.

    Raises:
        SystemRefused: the folder cannot be read.
    """
    found, lost = [], []
    for folder in _run_folders(runs_dir):
        try:
            found.append((folder, read_run(folder)))
        except NotFound as error:
            lost.append(_unreadable(folder, error.detail))
    found.sort(key=lambda pair: pair[1].order, reverse=True)
    lost.sort(key=lambda each: (each.sequence, each.listed.run), reverse=True)
    return RunList(runs_dir, tuple(found), tuple(lost))


def records_in(runs_dir: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the folders of all runs below a folder, each with its record as far as that is JSON."""
    return [(folder, record_in(folder)) for folder in _run_folders(runs_dir)]


def newest_sequence(runs_dir: Path) -> int:
    """Returns the largest number of the runs below a folder, those that cannot be read included; 0 for none."""
    records = records_in(runs_dir)
    return max((sequence_of(each.get("sequence"), each.get("created_at")) for _, each in records), default=0)


def _run_folders(runs_dir: Path) -> list[Path]:
    try:
        found = [Path(entry.path) for entry in os.scandir(runs_dir) if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise of_system(error, runs_dir) from None
    return [folder for folder in found if _RUN_ID.fullmatch(folder.name) or os.path.lexists(folder / RUN)]


def record_in(folder: Path) -> dict[str, Any]:
    """The record of a run as far as it is JSON, whatever wrote it; at least when its folder was named."""
    try:
        found = json.loads((folder / RUN).read_bytes())
    except (OSError, ValueError, RecursionError):
        found = {}
    named = {"sequence": sequence_of_id(folder.name)}
    return named | found if isinstance(found, dict) else named


def _unreadable(folder: Path, reason: str) -> Unreadable:
    record = record_in(folder)
    name, run, created_at = (str(record.get(key) or "")[:200] for key in ("name", "run", "created_at"))
    sequence = sequence_of(record.get("sequence"), created_at)
    return Unreadable(
        folder, name, sequence, UnreadableRun(run=run or folder.name, created_at=created_at, reason=reason)
    )
