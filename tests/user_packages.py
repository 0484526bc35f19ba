"""Packages of plug-ins that a test writes."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Write = Callable[[str], str]
"""The source of a package -> its name, by which `STRATA_PLUGINS` names it."""
_NUMBERS = itertools.count()


@pytest.fixture
def user_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a package of a user, which this process can import."""
    written: list[str] = []

    def write(source: str) -> str:
        name = f"of_a_user_{next(_NUMBERS)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("STRATA_PLUGINS", name)
        importlib.invalidate_caches()
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)
