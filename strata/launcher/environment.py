"""What the launcher passes to the processes of a local topology: modules, environment, socket, devices."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from shared.core.errors import BadInput
from shared.core.os_errors import SystemRefused
from shared.runtime.host_limits import cpus
from strata.launcher import home

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables set to 1 before torch is imported: the number of threads changes the last bits of a sum."""

MIN_FILES = 64
"""Files that a process of a small topology must be allowed to open."""
_REACH_S = 5.0
"""Longest wait for a connection to this machine itself."""
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

    By default there is one agent for each CPU that this process may use, but at most one per device.

    Raises:
        BadInput: there is no device, or an agent would get none.
    """
    if devices < 1:
        raise BadInput(f"a topology needs at least one device, not {devices}", field="devices")
    count = min(cpus(), devices) if agents is None else agents
    if not 1 <= count <= devices:
        raise BadInput(f"{devices} devices can be spread over 1 to {devices} agents, not {count}", field="agents")
    each, more = divmod(devices, count)
    return [each + (index < more) for index in range(count)]


def common(more: Mapping[str, str], tier_token: str) -> dict[str, str]:
    """The environment of all processes: this process' own, updated with `more` and with the settings that must hold."""
    env = {**os.environ, **more}
    return {
        **env,
        **dict.fromkeys(_ONE_THREAD, "1"),
        "PYTHONUNBUFFERED": "1",
        "GLIBC_TUNABLES": env.get("GLIBC_TUNABLES") or MALLOC,
        "STRATA_TIER_TOKEN": tier_token,
        "STRATA_TIER_TOKEN_FILE": "",
        "STRATA_CACHE_DIR": env.get("STRATA_CACHE_DIR") or str(home.cache_folder()),
    }


def check_files(edges: int) -> None:
    """Check that processes may open as many files as a topology with so many edges needs.

    Raises:
        SystemRefused: names both numbers.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(MIN_FILES, 40 + 3 * edges)  # tried: 6 edges run with 64 files, 12 do not, but with 80
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SystemRefused(
            f"{hard} files may be open in a process, a topology with {edges} edges needs {needed}: raise `ulimit -n`"
        )


def loopback() -> str:
    """The address by which this machine reaches itself: 127.0.0.1, or ::1 where there is no IPv4.

    Raises:
        SystemRefused: there is neither.
    """
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with contextlib.suppress(OSError), socket.socket(family) as server, socket.socket(family) as client:
            server.bind((address, 0))  # may succeed while the interface is down
            server.listen()
            client.settimeout(_REACH_S)
            client.connect(server.getsockname())
            return address
    raise SystemRefused("this machine cannot reach itself: it has neither 127.0.0.1 nor ::1 (`ip link set lo up`)")


def listening(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 means any free port.

    Raises:
        BadInput: the port is not available.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
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
