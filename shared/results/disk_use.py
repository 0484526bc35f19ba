"""How many bytes the results folders of each owner hold."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from shared.results.run_list import records_in


def bytes_by_owner(runs_dir: Path) -> Counter[str | None]:
    """Returns the bytes of the files in all results folders, by the owner that a run's record names, None for none."""
    used: Counter[str | None] = Counter()
    for folder, record in records_in(runs_dir):
        owner = record.get("owner")
        used[owner if isinstance(owner, str) else None] += folder_bytes(folder)
    return used


def folder_bytes(folder: Path) -> int:
    """Returns the bytes of the files in a folder and below; what vanishes meanwhile counts as nothing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue
    return total
