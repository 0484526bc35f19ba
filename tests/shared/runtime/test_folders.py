"""Folders of the user who runs a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from shared.core.os_errors import SystemRefused
from shared.runtime.folders import user_cache


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home_folder_has_a_cache_among_the_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(tempfile.gettempdir()) / f"strata-{os.getuid()}"
    monkeypatch.setattr(Path, "home", no_home)
    assert user_cache() == here / ".cache" / "strata"
    monkeypatch.setattr(Path, "home", lambda: Path("/nonexistent"))
    assert user_cache() == here / ".cache" / "strata"


def test_a_cache_of_another_user_in_temporary_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(Path, "home", no_home)
    user_cache().mkdir(parents=True)
    user_cache()
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 5)
    with pytest.raises(SystemRefused, match=r"belongs to .*: set STRATA_CACHE_DIR"):
        user_cache()
