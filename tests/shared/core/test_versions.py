"""The version of StrataFL has one place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from shared.core.versions import VERSION, versions

ROOT = Path(__file__).resolve().parents[3]


def test_the_package_and_the_changelog_have_the_version_of_the_code() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "shared.core.versions.VERSION"}
    newest = re.search(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION == versions()["stratafl"]
