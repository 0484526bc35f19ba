"""Folders of the user who runs a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def user_cache() -> Path:
    """Returns `~/.cache/strata`; of a user without a home folder, one in the folder of temporary files."""
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no entry in /etc/passwd
        home = Path(tempfile.gettempdir()) / f"strata-{os.getuid()}"
    return home / ".cache" / "strata"
