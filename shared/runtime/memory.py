"""Free memory of the machine, and whether images and processes fit into it."""

from __future__ import annotations

import os

from shared.core.errors import BadInput

PROCESS_BYTES = 150_000_000
"""What a tier's process takes at least: Python, torch and the service."""


def check_images(n: int, size: int) -> None:
    """Refuse to bring n colour images to a size at which they cannot fit into this machine's free memory.

    Raises:
        BadInput: with the figures.
    """
    needed, there = 2 * n * size**2 * 3, available_bytes()
    if there is not None and needed > there:
        raise BadInput(
            f"data.size {size}: {n} images of {size}x{size} pixels need at least {needed / 1e9:.1f} GB, "
            f"{there / 1e9:.1f} GB are free",
            field="data.size",
        )


def check_processes(n: int, owed: int = 0) -> None:
    """Refuse to start more processes than fit into this machine's free memory.

    Args:
        n: processes that are to start.
        owed: bytes of the free memory that processes which run already have yet to take.

    Raises:
        BadInput: with the figures.
    """
    found = available_bytes()
    if found is None:
        return
    there = max(found - owed, 0)
    if n * PROCESS_BYTES > there:
        raise BadInput(
            f"{n} processes need at least {n * PROCESS_BYTES / 1e9:.1f} GB, {there / 1e9:.1f} GB are free; "
            "fewer edges, or more devices an agent (--agents)"
        )


def available_bytes() -> int | None:
    """Free memory of this machine, None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") + _cached_bytes()
    except (ValueError, OSError):
        return None


def _cached_bytes() -> int:
    """What Linux would give back: `MemAvailable` beyond `MemFree`."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * (int(lines["MemAvailable"].split()[0]) - int(lines["MemFree"].split()[0]))
    except (OSError, KeyError, ValueError):
        return 0
