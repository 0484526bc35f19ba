"""The folder of a local topology: a given one that is kept, or a temporary one that goes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from shared.core.errors import Conflict

_PREFIX = f"strata-topology-{os.getuid()}-"
_LOCK = "launcher.lock"


class WorkFolder:
    """A folder under a lock that the kernel frees when its launcher ends, however that ends.

    So a temporary folder without a holder is known to be left behind by a killed launcher; whoever makes the
    next one removes it.

    Raises:
        Conflict: another launcher works in the given folder.
    """

    def __init__(self, given: Path | None) -> None:
        self._temporary = given is None
        if given is None:
            _sweep(Path(tempfile.gettempdir()))
            made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        else:
            given.mkdir(parents=True, exist_ok=True)
            made = given
        lock = _take(made)
        if lock is None:
            raise Conflict(f"another topology works in {made}")
        self._lock = lock
        if self._temporary:  # only now under the name that others look for, so that it never seems abandoned
            made = made.rename(made.with_name(made.name.removeprefix(".")))
        self.path = made.resolve()

    def close(self) -> None:
        """Remove a temporary folder; leave a given one to the next launcher."""
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _take(folder: Path) -> int | None:
    """The folder's lock as a descriptor, None if somebody holds it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(parent: Path) -> None:
    """Remove temporary folders of one's own whose launcher is gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = _take(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
