"""One folder of unpacked data for all tests of a session: unpacking takes longer than a round."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def data_cache() -> Path:
    """The folder of this process, empty at first; it is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="strata-tests-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
