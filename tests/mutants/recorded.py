"""Files of JSON lines, to which a session adds as it goes; whatever ends it, at most the last line is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple


class RecordedFile(NamedTuple):
    """One file of tests: the seconds of each test that passed."""

    file: str
    digest: str
    tests: dict[str, float]


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Adds a line, after the end of one that was cut off."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All lines but those that were cut off; none if there is no such file."""
    return list(_complete(path.read_text("utf-8").split("\n"))) if path.exists() else []


def _complete(lines: list[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(json.JSONDecodeError):
            yield json.loads(line)
