"""The folder `.strata`: what others learn from it, and what is known before a topology starts."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from shared.core import os_errors
from shared.core.errors import Conflict, NotFound
from shared.core.os_errors import SystemRefused
from strata.connection import connect
from strata.doctor import topology
from strata.launcher import home
from strata.launcher.work_folder import WorkFolder

URL = "http://127.0.0.1:9"
OTHER = 2**31 - 5


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("STRATA_URL", raising=False)
    return tmp_path / "home"


def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process run as another user than the one whose files these are."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    monkeypatch.setattr(os_errors, "_user", lambda uid: "bob" if uid == OTHER else "alice")


def test_a_running_topology_of_another_user_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with home.announced(URL):
        assert home.of_another() == ""
        another_user(monkeypatch)
        assert home.of_another().startswith(f"the topology that runs here, at {URL}, is of alice; STRATA_HOME")
        assert topology(URL).name == "topology"
        with pytest.raises(Conflict, match="already running"):
            home.check()
    assert home.of_another() == ""
    shutil.rmtree(folder)
    assert home.of_another() == ""
    folder.write_text("a file")
    assert home.of_another() == ""
    with pytest.raises(SystemRefused, match=f"{folder}: File exists"):
        home.check()


def test_one_whose_files_cannot_be_read_may_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def closed(self: Path, *args: object, **options: object) -> object:
        if self.name == "topology.lock":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self, *args, **options)  # type: ignore[call-overload]

    with home.announced(URL):
        another_user(monkeypatch)
        monkeypatch.setattr(Path, "open", closed)
        assert home.running() is None
        said = home.of_another()
        assert said.startswith(f"a topology of alice may run here: {folder}/topology.lock cannot be read; STRATA_HOME")
        assert (topology(None).state, topology(None).found) == ("warn", said)
        with pytest.raises(NotFound, match="a topology of alice may run here"):
            connect(None)
        monkeypatch.undo()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named_before_anything_starts(
    code: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SystemRefused, match=rf"{folder}/topology\.lock: .*: its file system has no locks; STRATA_HOME"):
        home.check()
    assert home.running() is None
    with pytest.raises(OSError, match=r"launcher\.lock") as refused:
        WorkFolder(tmp_path / "work")
    assert refused.value.errno == code
