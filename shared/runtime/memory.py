"""Free memory of the machine, and checks that images and processes fit into it."""

from __future__ import annotations

import os

from shared.core.errors import BadInput

PROCESS_BYTES = 40_000_000
"""Least memory of its own that a forked process of a local topology takes; an executed one takes four times as much."""


def check_images(n: int, size: int) -> None:
    """Refuses a size of colour images at which n of them cannot fit into the free memory.

    Raises:
        BadInput: names both amounts.
    """
    needed, free = 2 * n * size**2 * 3, available_bytes()
    if free is not None and needed > free:
        raise BadInput(
            f"data.size {size}: {n} images of {size}x{size} pixels need at least {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free",
            field="data.size",
        )


def check_processes(n: int, owed: int = 0) -> None:
    """Refuses to start more processes than fit into the free memory.

    Args:
        n: number of processes to start.
        owed: bytes of the free memory that running processes have yet to take.

    Raises:
        BadInput: names both amounts.
    """
    available = available_bytes()
    if available is None:
        return
    free = max(available - owed, 0)
    if n * PROCESS_BYTES > free:
        raise BadInput(
            f"{n} processes need at least {n * PROCESS_BYTES / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
            "use fewer edges, or more devices an agent (--agents)"
        )


def available_bytes() -> int | None:
    """Returns the free memory of this machine, None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") + _cached_bytes()
    except (ValueError, OSError):
        return None


def _cached_bytes() -> int:
    """Returns the bytes of caches that Linux would give back: `MemAvailable` minus `MemFree`."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * (int(lines["MemAvailable"].split()[0]) - int(lines["MemFree"].split()[0]))
    except (OSError, KeyError, ValueError):
        return 0
