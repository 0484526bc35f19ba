"""The folder `.strata` (STRATA_HOME), by which commands find a running `strata up`; the cache of data sets."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from shared.core.errors import Conflict
from shared.core.locks import lock
from shared.core.os_errors import check_writable, other_owner, refusals
from shared.runtime.folders import user_cache

_NOTE, _LOCK = "topology.json", "topology.lock"
_PROBE_S = 1.0


@dataclass(frozen=True)
class Running:
    """A running `strata up`: the URL of its cloud, its process id, the folder of its logs.

    Attributes:
        authority: in secure mode, the file with the certificate of the authority that signs the cloud's.
    """

    url: str
    pid: int
    logs: str = ""
    authority: str = ""


def folder(within: Path = Path()) -> Path:
    """STRATA_HOME, by default `.strata` in a folder, that is in the current one."""
    return Path(os.environ.get("STRATA_HOME") or within / ".strata")


def cache_folder() -> Path:
    """STRATA_CACHE_DIR, by default `~/.cache/strata`, where unpacked data sets outlive a topology."""
    return Path(os.environ.get("STRATA_CACHE_DIR") or user_cache()).resolve()


def running() -> Running | None:
    """The running `strata up`, or None. The files of a killed one are ignored: the kernel has freed its lock.

    One of another user may be hidden from this one: see `of_another`.

    Raises:
        Conflict: one runs here, but its file is damaged or of another version.
    """
    path = folder() / _NOTE
    try:
        with (folder() / _LOCK).open("rb") as file:
            if lock(file.fileno(), file.name, shared=True):
                return None
        fields = json.loads(path.read_text(encoding="utf-8"))
        logs, authority = (str(fields.get(name, "")) for name in ("logs", "authority"))
        return Running(url=str(fields["url"]), pid=int(fields["pid"]), logs=logs, authority=authority)
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{path} is damaged or of another version ({type(error).__name__}: {error})"
        raise Conflict(f"a `strata up` runs here, but {why}: stop it by Ctrl-C or its process id") from None


def of_another() -> str:
    """A sentence, if the running `strata up` is another user's, or may be, as its files cannot be read; else empty."""
    lock_file, own = folder() / _LOCK, f"STRATA_HOME names a folder of your own, now {folder()}"
    try:
        owner = other_owner(lock_file) if os.path.lexists(lock_file) else ""
        lock_file.open("rb").close()
    except PermissionError:
        owner = other_owner(lock_file) or "another user"
        return f"a topology of {owner} may run here: {lock_file} cannot be read; {own}"
    except OSError:
        return ""
    found = running()
    return f"the topology that runs here, at {found.url}, is of {owner}; {own}" if found and owner else ""


def check() -> None:
    """Check that a topology can be announced here.

    Raises:
        Conflict: one runs already.
        SystemRefused: the folder cannot be written, or its file system has no locks.
    """
    with refusals(folder()):
        folder().mkdir(parents=True, exist_ok=True)
        check_writable(folder())
        with (folder() / _LOCK).open("ab") as file:
            _hold(file)


@contextlib.contextmanager
def announced(url: str, logs: Path | None = None, authority: Path | None = None) -> Iterator[None]:
    """Let other commands find this process' topology while the context is open.

    Raises:
        Conflict: another topology already runs for this folder.
    """
    folder().mkdir(parents=True, exist_ok=True)
    note = (folder() / _NOTE).resolve()
    with (folder() / _LOCK).open("ab") as file:
        _hold(file)
        part = note.with_name(f".{note.name}.{os.getpid()}")
        part.write_text(
            json.dumps(asdict(Running(url, os.getpid(), str(logs or ""), str(authority or "")))) + "\n",
            encoding="utf-8",
        )
        part.replace(note)
        try:
            yield
        finally:
            note.unlink(missing_ok=True)


def _hold(file: BinaryIO) -> None:
    """Take the lock for as long as the file is open; a command that only reads holds it for a moment."""
    deadline = time.monotonic() + _PROBE_S
    while not lock(file.fileno(), file.name):
        if time.monotonic() > deadline:
            raise Conflict(f"a topology is already running (found in {folder()}); `strata down` stops it")
        time.sleep(0.02)
