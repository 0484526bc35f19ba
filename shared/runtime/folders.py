"""Folders of the user who runs a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from shared.core.os_errors import SystemRefused, other_owner


def user_cache() -> Path:
    """Returns `~/.cache/strata`; of a user whose home folder is none, one in the folder of temporary files.

    Raises:
        SystemRefused: that one belongs to another user, who could put wrong data into it.
    """
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry in /etc/passwd
        return _temporary_cache()
    return home / ".cache" / "strata" if home.is_dir() else _temporary_cache()


def _temporary_cache() -> Path:
    home = Path(tempfile.gettempdir()) / f"strata-{os.getuid()}"
    if owner := os.path.lexists(home) and other_owner(home):
        raise SystemRefused(f"the cache {home} belongs to {owner}: set STRATA_CACHE_DIR to a folder of your own")
    return home / ".cache" / "strata"
