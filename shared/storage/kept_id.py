"""An id that a process draws once and keeps in its state folder: it survives restarts and new containers."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from shared.core.validation import ID


def kept_id(path: Path, prefix: str) -> str:
    """Returns the id in a file; if the file holds none, draws one that begins with `prefix`, and writes it."""
    kept = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    if re.fullmatch(ID, kept):
        return kept
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn, part = f"{prefix}{secrets.token_hex(6)}", path.parent / f".{path.name}.{os.getpid()}.part"
    part.write_text(drawn, encoding="ascii")
    part.replace(path)
    return drawn
