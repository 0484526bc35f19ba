"""Files of measurements, read with limits."""

from __future__ import annotations

from pathlib import Path

from shared.core.errors import BadInput
from shared.simulation.device_file import MeasuredDevices, devices_in

MOST_BYTES = 64 * 2**20
"""Largest file of devices that is fitted."""
MOST_ROWS = 20_000
"""Most rows that are fitted."""


def devices_of(path: Path) -> MeasuredDevices:
    """The rows of a file of devices, which may be larger than one that a spec names.

    Raises:
        BadInput: it cannot be read; names the line, the column and the fault.
    """
    try:
        return devices_in(text_of(path, MOST_BYTES), MOST_ROWS)
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from None


def text_of(path: Path, most_bytes: int) -> str:
    """The text of a file.

    Raises:
        BadInput: it cannot be read, is not text, or is too large.
    """
    try:
        return bytes_of(path, most_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not text in UTF-8: {error}") from None


def bytes_of(path: Path, most_bytes: int) -> bytes:
    """The content of a file.

    Raises:
        BadInput: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            found = file.read(most_bytes + 1)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    if len(found) > most_bytes:
        raise BadInput(f"{path} is too large: the limit is {most_bytes:,} bytes")
    return found
