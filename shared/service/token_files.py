"""Tokens in files, as Docker's secrets are."""

from __future__ import annotations

from pathlib import Path

MAX_TOKEN_BYTES = 4096
"""Largest file that is read as a token."""


def token_of(name: str, token: str | None, file: str | Path | None) -> str | None:
    """Returns a token from its variable or from a file; None if neither is given.

    Args:
        name: the variable; `name`_FILE is that of the file.
        token: the variable's value.
        file: the path of the file.

    Raises:
        ValueError: both are given; or the file cannot be read, is empty (which must not mean "no token"), or holds
            something else than one word of printable ASCII of at most 4 KiB.
    """
    if not file:
        return token or None
    if token:
        raise ValueError(f"{name} and {name}_FILE are both set")
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{name}_FILE: {file} cannot be read: {error.strerror}") from None
    word = content.decode("latin-1").strip()
    if not word:
        raise ValueError(f"{name}_FILE: {file} is empty")
    if len(content) > MAX_TOKEN_BYTES or not all("!" <= letter <= "~" for letter in word):
        raise ValueError(
            f"{name}_FILE: {file} holds no token: one word of printable ASCII, {MAX_TOKEN_BYTES} bytes at most"
        )
    return word
