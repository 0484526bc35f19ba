"""Reading, merging and following the log lines of several processes, from a folder, a file or a pipe."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from shared.run_records.run_order import sequence_of_id
from shared.run_records.runs import FINAL
from shared.runtime.logs import read

Line = dict[str, Any]
LATEST, ALL = "latest", "all"
POLL_S = 0.2
SETTLE_S = 1.0
"""How long to wait for the last lines of other processes after a run has ended."""
MAX_BYTES = 2**20
"""Longest line in bytes; a longer one is split into several lines of plain text."""
_PREFIX = re.compile(r"^[A-Za-z0-9_.-]{1,128} +\| ")
"""The prefix that Compose writes before each line unless `--no-log-prefix` is given."""


@dataclass
class Wanted:
    """A filter for log lines.

    Attributes:
        run: a run id; `latest` for the newest run that has lines; `all` for every line, including those of no run.
        round_no: keeps only the lines of this round.
        tier: keeps only the lines of this tier.
        newest: the newest run seen so far.
        sequences: by run, the number that orders it, as the cloud logged it when the run was created.
        n_foreign: number of lines that are not in our JSON format.
    """

    run: str = LATEST
    round_no: int | None = None
    tier: str | None = None
    newest: str = ""
    n_foreign: int = 0
    sequences: dict[str, int] = field(default_factory=dict)

    def takes(self, line: Line) -> bool:
        """Whether the filter accepts a line; a line of a newer run makes that run the latest."""
        self.n_foreign += not line["at"]
        run = line.get("run")
        if isinstance(run, str):
            if isinstance(sequence := line.get("sequence"), int):
                self.sequences[run] = sequence
            if self._order(run) > self._order(self.newest):
                self.newest = run
        if self.run != ALL and run != self.of:
            return False
        of_round = self.round_no is None or line.get("round") == self.round_no
        return of_round and self.tier in (None, line.get("tier"))

    def _order(self, run: str) -> tuple[int, str]:
        """What sorts runs: the number that the cloud logged, or else the time in the id."""
        return self.sequences.get(run) or sequence_of_id(run), run

    @property
    def of(self) -> str:
        """The id of the run; for `latest` the newest run seen so far."""
        return self.newest if self.run == LATEST else self.run


def parsed(raw: str) -> Line:
    """A parsed log line; other output of a process becomes a line of plain text without ids."""
    raw = raw.rstrip("\r\n")
    bare = _PREFIX.sub("", raw, count=1)
    return read(bare) or {"at": "", "level": "info", "tier": "", "process": "?", "event": "text", "text": raw}


def history(lines: Iterable[Line], wanted: Wanted) -> list[Line]:
    """The accepted lines by time. With `latest`, lines of a run are dropped once a newer run is seen.

    Lines of one process stay in its order, also where its clock was set back.
    """
    kept: list[Line] = []
    for line in lines:
        before = wanted.newest
        takes = wanted.takes(line)
        if wanted.run == LATEST and wanted.newest != before:
            kept.clear()
        if takes:
            kept.append(line)
    times: list[str] = []
    latest = defaultdict[object, str](str)
    for line in kept:
        latest[line["process"]] = max(latest[line["process"]], str(line["at"]))
        times.append(latest[line["process"]])
    return [kept[place] for place in sorted(range(len(kept)), key=times.__getitem__)]


def of_stream(stream: IO[str]) -> Iterator[Line]:
    """The lines of a file or a pipe until its end."""
    while raw := stream.readline(MAX_BYTES):
        yield parsed(raw)


@dataclass
class Files:
    """The growing logs of a folder (`*.log`), or one file.

    Attributes:
        ends: the offset up to which each file has been read.
    """

    path: Path
    ends: dict[Path, int] = field(default_factory=dict)

    def new(self) -> Iterator[Line]:
        """The lines completed since the last call, file by file, including new files."""
        found = sorted(self.path.glob("*.log")) if self.path.is_dir() else [self.path]
        found.sort(key=lambda path: not path.name.startswith("cloud"))  # it says how runs are ordered
        for path in found:
            yield from self._new_in(path)

    def _new_in(self, path: Path) -> Iterator[Line]:
        try:
            with path.open("rb") as file:
                begin = self.ends.get(path, 0)
                if path.stat().st_size < begin:  # the file was truncated
                    begin = 0
                file.seek(begin)
                while raw := file.readline(MAX_BYTES):
                    if not raw.endswith(b"\n") and len(raw) < MAX_BYTES:
                        break  # the line is not complete yet
                    begin += len(raw)
                    yield parsed(raw.decode("utf-8", errors="replace"))
                self.ends[path] = begin
        except FileNotFoundError:
            return


def follow(
    files: Files,
    wanted: Wanted,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Line]:
    """The existing lines, then new ones, until the run has ended and was not resumed; with `all` without end.

    Args:
        files: are read again and again.
        wanted: which of their lines.
        clock: monotonic seconds.
        sleep: waits so many seconds before the files are read again.
    """
    ended_at: float | None = None
    while True:
        lines = history(files.new(), wanted)
        yield from lines
        for line in lines:
            if line["event"] == "run.status" and line.get("run") == wanted.of:
                ended_at = clock() if line.get("status") in FINAL else None
        if wanted.run != ALL and ended_at is not None and clock() - ended_at > SETTLE_S:
            return
        sleep(POLL_S)
