"""Checks that images and processes fit into the free memory."""

from __future__ import annotations

from shared.core.errors import BadInput
from shared.runtime.host_limits import available_bytes, memory_limit

FORK_SERVER_BYTES = 250_000_000
"""Least memory of redis-server and the fork server of a local topology, with the pages that others share."""
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


def check_processes(n: int, owed: int = 0, shared: int = 0) -> None:
    """Refuses to start more processes than fit into the free memory.

    Args:
        n: number of processes to start.
        owed: bytes of the free memory that running processes have yet to take.
        shared: bytes that all of them need once.

    Raises:
        BadInput: names both amounts.
    """
    available = available_bytes()
    if available is None:
        return
    needed, free = n * PROCESS_BYTES + shared, max(available - owed, 0)
    if needed > free:
        raise BadInput(
            f"{n} processes need at least {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free{of_limit()}; "
            "use fewer edges, or more devices an agent (--agents)"
        )


def check_topology(edges: int, agents: int) -> None:
    """Refuses a local topology whose processes do not fit into the free memory.

    Raises:
        BadInput: names both amounts.
    """
    check_processes(1 + edges + agents, shared=FORK_SERVER_BYTES)


def of_limit() -> str:
    """Returns a clause about the memory that this process' container allows; empty without a limit."""
    limit = memory_limit()
    return "" if limit is None else f" (this container allows {limit / 1e9:.2f} GB)"
