"""The folder `.strata` (STRATA_HOME), by which a running `strata up` is found; and the cache of data sets."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from shared.core.errors import Conflict

_NOTE, _LOCK = "topology.json", "topology.lock"
_PROBE_S = 1.0


@dataclass(frozen=True)
class Running:
    """A running `strata up`: where its cloud is, its process, and the folder of its logs."""

    url: str
    pid: int
    logs: str = ""


def folder() -> Path:
    """STRATA_HOME, by default `.strata` where the command runs."""
    return Path(os.environ.get("STRATA_HOME") or ".strata")


def cache_folder() -> Path:
    """STRATA_CACHE_DIR, by default `~/.cache/strata`: unpacked data sets outlive a topology."""
    return Path(os.environ.get("STRATA_CACHE_DIR") or Path.home() / ".cache" / "strata").resolve()


def running() -> Running | None:
    """The running `strata up`. What a killed one left behind counts for nothing: its lock went with it."""
    try:
        with (folder() / _LOCK).open("rb") as lock:
            if _taken(lock.fileno(), fcntl.LOCK_SH):
                return None
        fields = json.loads((folder() / _NOTE).read_text(encoding="utf-8"))
        return Running(url=str(fields["url"]), pid=int(fields["pid"]), logs=str(fields.get("logs", "")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def announced(url: str, logs: Path | None = None) -> Iterator[None]:
    """Let other commands find this process' topology as long as the context lasts.

    Raises:
        Conflict: a topology of this folder runs already.
    """
    folder().mkdir(parents=True, exist_ok=True)
    note = (folder() / _NOTE).resolve()
    with (folder() / _LOCK).open("ab") as lock:
        deadline = time.monotonic() + _PROBE_S  # a command that only looks holds it for a moment
        while not _taken(lock.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise Conflict(f"a topology of {folder()} runs already; `strata down` stops it")
            time.sleep(0.02)
        part = note.with_name(f".{note.name}.{os.getpid()}")
        part.write_text(
            json.dumps(asdict(Running(url=url, pid=os.getpid(), logs=str(logs or "")))) + "\n", encoding="utf-8"
        )
        part.replace(note)
        try:
            yield
        finally:
            note.unlink(missing_ok=True)


def _taken(descriptor: int, kind: int) -> bool:
    """Try to take a lock, without waiting."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
