"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: Path, content: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Replace a file: a reader sees the old content or the new one.

    Args:
        path: of the file; its folder is made if there is none.
        content: the new one.
        mode: of the file, as far as the umask allows.
        durable: whether the content survives a power cut from now on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
