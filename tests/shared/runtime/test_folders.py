"""Folders of the user who runs a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from shared.runtime.folders import user_cache


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home_folder_has_a_cache_among_the_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", no_home)
    assert user_cache() == Path(tempfile.gettempdir()) / f"strata-{os.getuid()}" / ".cache" / "strata"
