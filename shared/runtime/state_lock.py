"""One process at a time uses a folder of state: two would be one node to others, and delete each other's files."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from shared.core.errors import Conflict
from shared.core.locks import lock
from shared.core.os_errors import refusals

log = logging.getLogger(__name__)
NAME = "process.lock"


class Held:
    """A lock that is held as long as this object, and no longer than its process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        """Let another process use the folder."""
        os.close(self._descriptor)


def alone_in(folder: Path, tier: str) -> Held:
    """Locks a folder of state for this process.

    Args:
        folder: is made if it is not there.
        tier: that uses it, as it is named in the variable of its folder.

    Raises:
        Conflict: another process uses it; names both.
        SystemRefused: it cannot be written to.
    """
    with refusals(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    held = Held(descriptor)
    try:
        free = lock(descriptor, folder / NAME)
    except OSError as error:  # some network file systems know no locks
        log.warning("%s cannot be locked (%s): make sure that no other process uses it", folder, error.strerror)
        return held
    if not free:
        other = os.pread(descriptor, 100, 0).decode(errors="replace")
        field = f"{tier.upper()}_STATE_DIR"
        why = f"{field}: {folder} is the state of another process that runs ({other}); give each {tier} its own folder"
        raise Conflict(why, field=field)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}"[:100].encode(), 0)
    return held
