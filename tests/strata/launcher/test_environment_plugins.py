"""Plug-ins in the working directory are found by the processes of a local topology."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata.launcher.environment import common


def test_the_working_directory_is_searched_last_where_plug_ins_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "first")
    monkeypatch.delenv("STRATA_PLUGINS", raising=False)
    assert str(tmp_path) not in common({}, "token")["PYTHONPATH"].split(os.pathsep)
    env = common({"STRATA_PLUGINS": "mine"}, "token")
    assert env["PYTHONPATH"].split(os.pathsep)[1:] == ["first", str(tmp_path)]
    assert env["STRATA_PLUGINS"] == "mine"
