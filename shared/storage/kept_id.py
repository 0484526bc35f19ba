"""Ids and secrets that a process draws once and keeps in its state folder: they survive restarts and new containers."""

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


def next_count(path: Path) -> int:
    """Returns the number in a file plus one, and keeps that; 1 if there is none."""
    kept = path.read_text(encoding="ascii").strip() if path.exists() else ""
    count = int(kept) + 1 if kept.isdigit() else 1
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.parent / f".{path.name}.{os.getpid()}.part"
    part.write_text(str(count), encoding="ascii")
    part.replace(path)
    return count


def kept_secret(path: Path) -> str:
    """Returns the secret in a file (64 hexadecimal digits); if there is none, draws one for its owner alone."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.parent / f".{path.name}.{os.getpid()}.part"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        part.replace(path)
    return path.read_text(encoding="ascii")
