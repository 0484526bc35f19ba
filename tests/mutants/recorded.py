"""Files of JSON lines, to which a session adds as it goes; whatever ends it, at most the last line is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class RecordedFile(NamedTuple):
    """One file of tests: the seconds of each test that passed."""

    file: str
    digest: str
    tests: dict[str, float]


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Adds a line, and whatever is missing of the one before."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines; none if there is no such file."""
    if not path.exists():
        return []
    lines = path.read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
