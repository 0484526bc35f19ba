"""Tokens that stand in files: what secrets of Docker, and of others, put beside a process."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 4096


def token_of(name: str, token: str | None, file: str | Path | None) -> str | None:
    """The token that the variable `name` holds, else what the file holds that `name`_FILE names; None without both.

    Raises:
        ValueError: both are set; or the file cannot be read, is empty (which must not pass for no token at all), or
            holds what no header can carry: no single word of printable ASCII, or more than 4 KiB.
    """
    if not file:
        return token or None
    if token:
        raise ValueError(f"{name} and {name}_FILE are both set")
    try:
        with Path(file).open("rb") as opened:
            found = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{name}_FILE: {file} cannot be read: {error.strerror}") from None
    held = found.decode("latin-1").strip()
    if not held:
        raise ValueError(f"{name}_FILE: {file} is empty")
    if len(found) > MOST_BYTES or not all("!" <= letter <= "~" for letter in held):
        raise ValueError(f"{name}_FILE: {file} holds no token: one word of printable ASCII, {MOST_BYTES} bytes at most")
    return held
