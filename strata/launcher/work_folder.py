"""The folder of a local topology: a given one, which is kept, or one of its own, which goes when no run needs it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from shared.core.errors import Conflict
from shared.core.locks import lock
from strata.launcher import home, local_state
from strata.launcher.redis_server import check_sockets, remove_socket

_PREFIX = f"strata-topology-{os.getuid()}-"
_LOCK = "launcher.lock"
_REMOVABLE = "removable"
"""A mark without which `_sweep` leaves a folder; it is there from the start, so that a full disk hinders nobody."""
_PLACE = "topologies"
"""The folder below STRATA_HOME, or `.strata` beside that of results.

What lies there outlives a restart of the machine and cleaners of /tmp, and where the results have a file system of
their own that is full, or are removed, the state is still there.
"""
_TRIES = 3
"""How often a folder is made: another launcher may remove the empty one in which it is to be."""


class WorkFolder:
    """A folder with a lock, which the kernel frees when the launcher ends, even if it is killed.

    A folder of its own that nobody has locked was therefore left behind by a killed launcher; the next launcher
    removes it, unless a run can go on from it.

    Args:
        given: the folder; None means one of its own, beside that of results or, where that does not suit, among
            temporary files.
        runs_dir: the folder of results.
        own: whether the given folder is one that an earlier topology made for itself.

    Raises:
        Conflict: another launcher uses the given folder.
    """

    def __init__(self, given: Path | None, runs_dir: Path | None = None, *, own: bool = False) -> None:
        self._place = None if runs_dir is None else home.folder(runs_dir.parent) / _PLACE
        self._made_home = False
        self._temporary = given is None or own
        if given is None:
            made, self._lock = self._new()
        else:
            given.mkdir(parents=True, exist_ok=True)
            taken = _take(given)
            if taken is None:
                raise Conflict(f"another topology uses {given}")
            made, self._lock = given, taken
        self.path = made.resolve()

    def keep(self) -> Path:
        """Have a folder of its own outlive the topology, whatever its runs need; returns its path."""
        self._temporary = False
        (self.path / _REMOVABLE).unlink(missing_ok=True)
        return self.path

    def _new(self) -> tuple[Path, int]:
        temporary = Path(tempfile.gettempdir())
        _sweep(temporary)
        if self._place is not None:
            _sweep(self._place)
            self._made_home = not self._place.parent.exists()
            for _ in range(_TRIES):
                with contextlib.suppress(OSError):
                    self._place.mkdir(parents=True, exist_ok=True)
                    return _made_in(self._place)
        return _made_in(temporary)

    def close(self, *, keep: bool = False) -> None:
        """Free the lock, and remove the folder if it is its own and is not to be kept."""
        if self._temporary and not keep:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        if self._place is not None:
            with contextlib.suppress(OSError):  # it is not empty
                self._place.rmdir()
                if self._made_home:
                    self._place.parent.rmdir()


def is_own(folder: Path) -> bool:
    """Whether a topology made this folder for itself."""
    return folder.name.startswith(_PREFIX)


def _made_in(place: Path) -> tuple[Path, int]:
    """A new folder and its lock.

    Raises:
        OSError: the file system has no room, no locks or no sockets.
    """
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=place))
    try:
        check_sockets(made)
        (made / _REMOVABLE).touch()
        taken = _take(made)
        if taken is None:
            raise BlockingIOError(f"{made} is locked")
        return made.rename(made.with_name(made.name.removeprefix("."))), taken  # `_sweep` finds it once it is locked
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _take(folder: Path) -> int | None:
    """The descriptor of the folder's lock, None if another process holds it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    free = False
    try:
        free = lock(descriptor, folder / _LOCK)
    finally:
        if not free:
            os.close(descriptor)
    return descriptor if free else None


def _sweep(parent: Path) -> None:
    """Remove this user's own folders whose launcher has ended, and from which no run can go on."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            taken = _take(folder)
            if taken is not None:
                if (folder / _REMOVABLE).exists() and not local_state.unfinished(folder):
                    remove_socket(folder / "redis")
                    shutil.rmtree(folder, ignore_errors=True)
                os.close(taken)
