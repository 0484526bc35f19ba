"""A private copy of the working tree: mutants are written there, and an edit meanwhile disturbs nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def update_copy(root: Path, copy: Path) -> None:
    """Make the copy equal to what git tracks or would track; bytecode in it stays valid where its source does."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    wanted = {name for name in listed.stdout.decode().split("\0") if name and (root / name).is_file()}
    for path in [path for path in copy.rglob("*") if path.is_file() and path.suffix != ".pyc"]:
        if path.relative_to(copy).as_posix() not in wanted:
            path.unlink()
    for name in wanted:
        source, target = root / name, copy / name
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
