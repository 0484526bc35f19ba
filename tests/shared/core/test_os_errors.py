"""What the operating system refuses is one sentence: the file, the cause, the remedy."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared.core import os_errors
from shared.core.os_errors import FOLDERS, SystemRefused, check_working_folder, check_writable, of_system, refusals
from strata.main import app_entry

REMEDIES = {
    errno.ENOSPC: f": the disk or the quota is full; {FOLDERS}",
    errno.EROFS: f"; {FOLDERS}",
    errno.EMFILE: ": `ulimit -n` shows and raises how many files a process may open",
    errno.ENOLCK: f": its file system has no locks; {FOLDERS}, TMPDIR another for temporary files",
    errno.EAGAIN: ": `ulimit -u` and the container's limit say how many processes and threads may run",
    errno.ENOMEM: ": no memory is left, or no more is allowed (`ulimit -v`, the container's limit)",
    errno.EISDIR: "",
}


@pytest.mark.parametrize("number", REMEDIES)
def test_an_error_has_file_cause_and_remedy(number: int) -> None:
    assert of_system(OSError(number, "It cannot"), "/cache").detail == f"/cache: It cannot{REMEDIES[number]}"
    assert of_system(OSError(number, "It cannot", b"/x"), "/cache").detail == f"/x: It cannot{REMEDIES[number]}"


def test_an_error_without_a_number_is_told_by_its_text_or_type() -> None:
    full = "92032 requested and 8064 written"
    assert of_system(OSError(full), "/cache").detail == f"/cache: {full}{REMEDIES[errno.ENOSPC]}"
    assert of_system(OSError(), "/cache").detail == "/cache: OSError"


def test_a_file_of_another_user_says_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os_errors._user(2**31 - 5) == "user 2147483643"  # it has no entry
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 5)
    monkeypatch.setattr(os_errors, "_user", lambda uid: "alice" if uid == os.getuid() else "bob")
    missing = tmp_path / "not" / "there"
    found = of_system(PermissionError(errno.EACCES, "Permission denied", str(missing))).detail
    assert (
        found == f"{missing}: Permission denied: {tmp_path} belongs to alice, and this process runs as bob; {FOLDERS}"
    )


def test_within_a_block_the_folder_stands_for_what_the_error_does_not_name(tmp_path: Path) -> None:
    with pytest.raises(SystemRefused, match="/the/cache: disk on fire"), refusals("/the/cache"):
        raise OSError("disk on fire")
    with pytest.raises(SystemRefused, match="missing: No such file or directory"), refusals("/the/cache"):
        (tmp_path / "missing").read_text()


def test_a_folder_is_checked_without_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "a" / "runs")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(SystemRefused, match="file: Not a directory"):
        check_writable(tmp_path / "file" / "a")
    asked: list[str] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append(path))
    with pytest.raises(SystemRefused, match="runs: Permission denied"):
        check_writable(tmp_path / "a" / "runs")
    assert asked == [str(tmp_path)]
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(SystemRefused, match="runs: Read-only file system"):
        check_writable(tmp_path / "a" / "runs")


def test_a_working_folder_that_was_removed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        with pytest.raises(SystemRefused, match="the working folder: No such file or directory; change"):
            check_working_folder()
        with pytest.raises(SystemExit):
            app_entry(["algorithms"])
    finally:
        monkeypatch.undo()
