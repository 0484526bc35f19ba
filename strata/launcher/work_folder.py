"""The folder of a local topology: a given one, which is kept, or a temporary one, which usually is removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from shared.core.errors import Conflict
from shared.core.locks import lock

_PREFIX = f"strata-topology-{os.getuid()}-"
_KEPT = f"strata-state-{os.getuid()}-"
"""`_sweep` leaves a folder of this name."""
_LOCK = "launcher.lock"


class WorkFolder:
    """A folder with a lock, which the kernel frees when the launcher ends, even if it is killed.

    A temporary folder that nobody has locked was therefore left behind by a killed launcher; the next launcher
    removes it.

    Raises:
        Conflict: another launcher uses the given folder.
    """

    def __init__(self, given: Path | None) -> None:
        self._temporary = given is None
        if given is None:
            _sweep(Path(tempfile.gettempdir()))
            made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        else:
            given.mkdir(parents=True, exist_ok=True)
            made = given
        taken = _take(made)
        if taken is None:
            raise Conflict(f"another topology uses {made}")
        self._lock = taken
        if self._temporary:  # `_sweep` finds it by this name, so it gets it only once it is locked
            made = made.rename(made.with_name(made.name.removeprefix(".")))
        self.path = made.resolve()
        self._kept: Path | None = None

    def keep(self) -> Path:
        """Have a temporary folder outlive the topology; returns its path after `close`."""
        if self._temporary and self._kept is None:
            self._kept = self.path.with_name(f"{_KEPT}{self.path.name.removeprefix(_PREFIX)}")
        return self._kept or self.path

    def close(self) -> None:
        """Free the lock, and remove the folder if it is temporary and not to be kept."""
        if self._kept is not None:
            self.path.rename(self._kept)
        elif self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


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
    """Remove this user's temporary folders whose launcher has ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            taken = _take(folder)
            if taken is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(taken)
