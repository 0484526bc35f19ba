"""Finding, merging and following the lines that processes logged: a folder of logs, a file, or what is piped in."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from shared.run_records.runs import FINAL
from shared.runtime.logs import read

Line = dict[str, Any]
LATEST, ALL = "latest", "all"
POLL_S = 0.2
SETTLE_S = 1.0
"""After the end of a run, how long the other processes' last lines are waited for."""
MOST_BYTES = 2**20
"""Of one line; what is longer is cut into several, none of which is ours."""
_PREFIX = re.compile(r"^[A-Za-z0-9_.-]{1,128} +\| ")
"""What Compose writes before a line that it is not told to leave bare."""


@dataclass
class Wanted:
    """Which lines somebody wants to see.

    Attributes:
        run: its id, or `latest`: the newest of which there are lines; or `all` lines, also those of no run.
        round_no: of this round only.
        tier: of this tier only.
        newest: the newest run of which there was a line.
        n_foreign: lines that were none of ours.
    """

    run: str = LATEST
    round_no: int | None = None
    tier: str | None = None
    newest: str = ""
    n_foreign: int = 0

    def takes(self, line: Line) -> bool:
        """Whether a line is wanted; a line of a newer run makes that the latest."""
        self.n_foreign += not line["at"]
        run = line.get("run")
        if isinstance(run, str) and run > self.newest:  # ids sort by time
            self.newest = run
        if self.run != ALL and run != self.of:
            return False
        of_round = self.round_no is None or line.get("round") == self.round_no
        return of_round and self.tier in (None, line.get("tier"))

    @property
    def of(self) -> str:
        """The run by its id; the latest as far as lines have told."""
        return self.newest if self.run == LATEST else self.run


def parsed(raw: str) -> Line:
    """A line of ours, or what else a process wrote as a line without ids."""
    raw = raw.rstrip("\r\n")
    bare = _PREFIX.sub("", raw, count=1)
    return read(bare) or {"at": "", "level": "info", "tier": "", "process": "?", "event": "text", "text": raw}


def history(lines: Iterable[Line], wanted: Wanted) -> list[Line]:
    """The wanted ones in the order of their clocks; of `latest` nothing is kept of a run once a newer one is seen."""
    kept: list[Line] = []
    for line in lines:
        before = wanted.newest
        takes = wanted.takes(line)
        if wanted.run == LATEST and wanted.newest != before:
            kept.clear()
        if takes:
            kept.append(line)
    return sorted(kept, key=lambda line: str(line["at"]))


def of_stream(stream: IO[str]) -> Iterator[Line]:
    """The lines of a file or a pipe until its end."""
    while raw := stream.readline(MOST_BYTES):
        yield parsed(raw)


@dataclass
class Files:
    """The growing logs of a folder (`*.log`), or one file.

    Attributes:
        ends: how far each was read.
    """

    path: Path
    ends: dict[Path, int] = field(default_factory=dict)

    def new(self) -> Iterator[Line]:
        """The lines that are complete since this was last asked, file by file; new files too."""
        found = sorted(self.path.glob("*.log")) if self.path.is_dir() else [self.path]
        for path in found:
            yield from self._new_in(path)

    def _new_in(self, path: Path) -> Iterator[Line]:
        try:
            with path.open("rb") as file:
                begin = self.ends.get(path, 0)
                if path.stat().st_size < begin:  # it was begun anew
                    begin = 0
                file.seek(begin)
                while raw := file.readline(MOST_BYTES):
                    if not raw.endswith(b"\n") and len(raw) < MOST_BYTES:
                        break  # the rest of the line is still to come
                    begin += len(raw)
                    yield parsed(raw.decode("utf-8", errors="replace"))
                self.ends[path] = begin
        except FileNotFoundError:
            return


def follow(files: Files, wanted: Wanted) -> Iterator[Line]:
    """What there is, then what comes, until the run has ended (and was not taken up again); of `all` without end."""
    ended_at: float | None = None
    while True:
        lines = history(files.new(), wanted)
        yield from lines
        for line in lines:
            if line["event"] == "run.status" and line.get("run") == wanted.of:
                ended_at = time.monotonic() if line.get("status") in FINAL else None
        if wanted.run != ALL and ended_at is not None and time.monotonic() - ended_at > SETTLE_S:
            return
        time.sleep(POLL_S)
