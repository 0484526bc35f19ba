"""What the launcher passes to the processes of a local topology: modules, environment, socket, devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.core.errors import BadInput
from strata.launcher import home

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables set to 1 before torch is imported: the number of threads changes the last bits of a sum."""

MALLOC = ":".join(
    f"glibc.malloc.{setting}"
    for setting in ("hugetlb=1", "arena_max=1", "mmap_threshold=33554432", "trim_threshold=134217728")
)
"""Buffers are allocated and freed in every step and round. Huge pages cost a fifth of the time. The compute thread
shares the heap of the main thread, since one of its own shrinks and grows, and the kernel clears the same pages again
and again. 128 MiB at the end of the heap are kept; what has 32 MiB or more is mapped apart and returned at once."""


@dataclass(frozen=True)
class Modules:
    """The module that `python -m` runs for each tier, and those that a fork server imports; tests replace them."""

    cloud: str = "cloud_server"
    edge: str = "edge_server"
    agent: str = "device_agent"
    preloaded: tuple[str, ...] = (
        "cloud_server.app",
        "cloud_server.dashboard.pages.new",
        "cloud_server.dashboard.pages.run",
        "cloud_server.dashboard.pages.topology",
        "edge_server.app",
        "device_agent.app",
        "shared.algorithms.fedavg",
        "shared.service.server",
        "uvicorn.lifespan.on",
        "uvicorn.loops.uvloop",
        "uvicorn.protocols.http.httptools_impl",
        "uvicorn.protocols.websockets.websockets_sansio_impl",
        "anyio._backends._asyncio",
    )


def spread(devices: int, agents: int | None = None) -> list[int]:
    """The number of devices of each agent, as even as possible.

    By default there is one agent per core, but at most one per device.

    Raises:
        BadInput: there is no device, or an agent would get none.
    """
    if devices < 1:
        raise BadInput(f"a topology needs at least one device, not {devices}", field="devices")
    count = min(os.cpu_count() or 1, devices) if agents is None else agents
    if not 1 <= count <= devices:
        raise BadInput(f"{devices} devices can be spread over 1 to {devices} agents, not {count}", field="agents")
    each, more = divmod(devices, count)
    return [each + (index < more) for index in range(count)]


def common(more: Mapping[str, str], tier_token: str) -> dict[str, str]:
    """The environment of all processes: this process' own, updated with `more` and with the settings that must hold."""
    env = {**os.environ, **more}
    source = str(Path(__file__).resolve().parents[2])  # so that the packages are found without being installed
    return {
        **env,
        **dict.fromkeys(_ONE_THREAD, "1"),
        "PYTHONPATH": os.pathsep.join(filter(None, [source, env.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "GLIBC_TUNABLES": env.get("GLIBC_TUNABLES") or MALLOC,
        "STRATA_TIER_TOKEN": tier_token,
        "STRATA_TIER_TOKEN_FILE": "",
        "STRATA_CACHE_DIR": env.get("STRATA_CACHE_DIR") or str(home.cache_folder()),
    }


def listening(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 means any free port.

    Raises:
        BadInput: the port is not available.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # so that a restarted cloud can take its old port
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise BadInput(f"port {port} of {host} is not available: {error.strerror}", field="port") from None
    return listener
