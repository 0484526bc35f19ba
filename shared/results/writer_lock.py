"""Which process writes a results folder: a lock that the kernel frees when that process ends, however it ends.

A record that says `running` is true only while somebody writes it. A folder that was written on this machine, is locked
by nobody and was not released belongs to a run whose cloud has ended without recording why.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shared.core.locks import lock

log = logging.getLogger(__name__)
WRITER = ".writer"
"""The locked file; it says on which machine it is locked, and where the cloud keeps the state of the run."""
_TAKE_S, _LOOK_S = 1.0, 0.02
"""A reader that looks whether it is free holds it for a moment."""


@dataclass
class WriterLock:
    """The lock of the process that writes a results folder.

    Attributes:
        folder: the results folder.
        state: the folder in which this cloud keeps its state.
    """

    folder: Path
    state: Path
    _descriptor: int | None = None

    def take(self) -> None:
        """Take the lock, unless this process has it. On a file system without locks nothing is claimed."""
        if self._descriptor is not None and self._is_there(self._descriptor):
            return
        self.release(completed=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / WRITER, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # what is written next says so
            return
        if not _locked(descriptor, self.folder, _TAKE_S):
            log.warning("%s cannot be locked", self.folder / WRITER)
            os.close(descriptor)
            return
        self._descriptor = descriptor
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"host": _host(), "state": str(self.state.resolve())}).encode(), 0)

    def _is_there(self, descriptor: int) -> bool:
        """Whether the folder still has the locked file; somebody may have removed it."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.folder / WRITER))
        except OSError:
            return False

    def release(self, *, completed: bool) -> None:
        """Free the lock of a run that has ended or is paused; of one that is `completed` nothing is left."""
        if self._descriptor is None:
            return
        if completed:
            (self.folder / WRITER).unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None


def state_of(folder: Path) -> Path | None:
    """The folder in which the cloud of this machine that wrote a results folder last keeps its state; None: unknown."""
    try:
        note = json.loads((folder / WRITER).read_bytes())
        return Path(note["state"]) if note["host"] == _host() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def abandoned(folder: Path) -> Iterator[bool]:
    """Whether a process of this machine wrote this folder and has ended; while the context is open none can begin."""
    if state_of(folder) is None:
        yield False
        return
    mine = os.access(folder / WRITER, os.W_OK)
    descriptor = os.open(folder / WRITER, os.O_RDWR if mine else os.O_RDONLY)
    try:
        yield _locked(descriptor, folder, 0.0)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, folder: Path, wait_s: float) -> bool:
    """Whether a lock could be taken in time; not on a file system without locks."""
    deadline = time.monotonic() + wait_s
    with suppress(OSError):
        while not (free := lock(descriptor, folder / WRITER)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return free
    return False


def _host() -> str:
    return socket.gethostname()
