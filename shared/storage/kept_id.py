"""Ids and secrets that a process draws once and keeps in its state folder: they survive restarts and new containers."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from shared.core.files import write_file
from shared.core.validation import ID


def kept_id(path: Path, prefix: str, *, n_bytes: int = 6, durable: bool = True) -> str:
    """Returns the id in a file; if the file holds none, draws one that begins with `prefix`, and writes it.

    Args:
        path: of the file.
        prefix: of a new id.
        n_bytes: of a new id after its prefix, two hexadecimal digits each.
        durable: whether a new id survives a power cut.
    """
    kept = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    if re.fullmatch(ID, kept):
        return kept
    drawn = f"{prefix}{secrets.token_hex(n_bytes)}"
    write_file(path, drawn.encode(), durable=durable)
    return drawn


def next_count(path: Path) -> int:
    """Returns the number in a file plus one, and keeps that; 1 if there is none."""
    kept = path.read_text(encoding="ascii").strip() if path.exists() else ""
    count = int(kept) + 1 if kept.isdigit() else 1
    write_file(path, str(count).encode(), durable=True)
    return count


def kept_secret(path: Path) -> str:
    """Returns the secret in a file (64 hexadecimal digits); if there is none, draws one for its owner alone."""
    if not path.exists():
        write_file(path, secrets.token_hex(32).encode(), mode=0o600, durable=True)
    return path.read_text(encoding="ascii")
