"""A record that says `running` is true only while somebody writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shared.results.folder import read_run, with_end
from shared.results.writer import write_begun
from shared.results.writer_lock import WRITER, WriterLock, state_of
from tests.strata.samples import a_run


def written(tmp_path: Path, **changes: Any) -> tuple[Path, WriterLock]:
    """Returns a results folder that this process writes, and the lock."""
    folder = tmp_path / "runs" / "r1"
    lock = WriterLock(folder, tmp_path / "state" / "cloud")
    lock.take()
    write_begun(folder, a_run(**{"status": "running", "rounds": 2, **changes}))
    return folder, lock


def kill(lock: WriterLock) -> None:
    """Ends the writer as the kernel does."""
    assert lock._descriptor is not None
    os.close(lock._descriptor)
    lock._descriptor = None


def test_a_run_whose_writer_was_killed_is_recorded_as_interrupted_by_its_next_reader(tmp_path: Path) -> None:
    folder, lock = written(tmp_path)
    assert read_run(folder).status == "running"
    kill(lock)
    found = read_run(folder)
    assert (found.status, found.rounds) == ("stopped", 2)
    assert found.reason == "interrupted: the cloud that ran it has ended, and could not record why"
    assert json.loads((folder / "run.json").read_text())["reason"] == found.reason
    assert state_of(folder) == tmp_path / "state" / "cloud"


def test_the_first_reason_stays(tmp_path: Path) -> None:
    folder, lock = written(tmp_path)
    assert with_end(folder, "redis-server ended").status == "running"
    kill(lock)
    with_end(folder, "redis-server ended")
    assert read_run(folder).reason == "interrupted: redis-server ended"


@pytest.mark.parametrize("status", ["paused", "stopped", "failed", "completed"])
def test_what_has_ended_or_is_paused_stays_so(tmp_path: Path, status: str) -> None:
    folder, lock = written(tmp_path, status=status)
    lock.release(completed=status == "completed")
    assert (read_run(folder).status, read_run(folder).reason) == (status, None)
    assert (folder / WRITER).exists() is (status != "completed")


def test_a_run_of_another_machine_is_left_alone(tmp_path: Path) -> None:
    folder, lock = written(tmp_path)
    kill(lock)
    note = json.loads((folder / WRITER).read_text())
    (folder / WRITER).write_text(json.dumps({**note, "host": "another"}))
    assert (read_run(folder).status, state_of(folder)) == ("running", None)


def test_a_folder_that_cannot_be_written_shows_the_end_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lock = written(tmp_path)
    kill(lock)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shared.results.folder.write_file", refused)
    assert read_run(folder).status == "stopped"
    assert json.loads((folder / "run.json").read_text())["status"] == "running"


def test_a_writer_that_begins_again_takes_the_lock(tmp_path: Path) -> None:
    folder, lock = written(tmp_path)
    kill(lock)
    again = WriterLock(folder, tmp_path / "other")
    again.take()
    assert read_run(folder).status == "running"
    assert state_of(folder) == tmp_path / "other"
    again.release(completed=True)
