"""The state of a local topology stays as long as a run in it can go on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shared.results.folder import read_run
from shared.results.writer import write_begun
from shared.results.writer_lock import WriterLock
from strata.launcher.local_state import Shape, kept_state, note, shape_of, unfinished
from strata.launcher.work_folder import WorkFolder
from tests.strata.samples import a_run


def topology(runs: Path) -> WorkFolder:
    work = WorkFolder(None, runs)
    note(work.path, Shape(str(runs), 2, (3, 2)))
    return work


def trains(work: WorkFolder, runs: Path, run: str, status: str = "running") -> Path:
    """Writes a run of a topology's cloud, which then ends as the kernel ends it."""
    lock = WriterLock(runs / run, work.path / "cloud")
    lock.take()
    write_begun(runs / run, a_run(run=run, status=status))
    lock.release(completed=status == "completed")
    return runs / run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_topology_that_no_run_needs_leaves_nothing(runs: Path) -> None:
    work = topology(runs)
    assert work.path.parent == runs.resolve().parent / ".strata" / "topologies"
    work.close(keep=bool(unfinished(work.path)))
    assert list(runs.parent.iterdir()) == [], "the folders were made for it"
    work = topology(runs)
    results = trains(work, runs, "r1", "completed")
    work.close(keep=bool(unfinished(work.path)))
    assert [*runs.parent.iterdir(), *runs.iterdir()] == [runs, results]


def test_the_state_of_an_interrupted_run_stays_and_the_record_says_why(runs: Path) -> None:
    work = topology(runs)
    results = trains(work, runs, "r1")
    assert [info.run for info in unfinished(work.path, "cloud ended (signal SIGKILL)")] == ["r1"]
    work.close(keep=True)
    assert read_run(results).reason == "interrupted: cloud ended (signal SIGKILL)"
    assert kept_state(results) == work.path
    assert shape_of(work.path) == Shape(str(runs), 2, (3, 2))
    again = WorkFolder(work.path, runs, own=True)
    trains(again, runs, "r1", "completed")
    again.close(keep=bool(unfinished(again.path)))
    assert not again.path.exists()


def test_a_killed_launchers_state_is_removed_by_the_next_one_once_its_results_are_gone(runs: Path) -> None:
    work = topology(runs)
    results = trains(work, runs, "r1")
    os.close(work._lock)  # the kernel does this when the launcher is killed
    topology(runs).close()
    assert work.path.exists()
    assert read_run(results).status == "stopped"
    shutil.rmtree(results)
    topology(runs).close()
    assert not work.path.exists()


def test_where_sockets_cannot_be_made_the_state_lies_with_temporary_files(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(made: Path) -> None:
        if made.is_relative_to(runs.parent / ".strata"):
            raise PermissionError(1, "Operation not permitted")

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("strata.launcher.work_folder.check_sockets", check)
    work = WorkFolder(None, runs)
    assert work.path.parent == tmp_path / "tmp"
    work.close()
    assert list(tmp_path.iterdir()) == [tmp_path / "tmp"]
