"""What the processes of a local topology are given: modules, environment, socket, devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.core.errors import BadInput
from strata.launcher import home

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Set to 1 before torch is imported: the number of threads changes the last bits of a sum."""

_MALLOC = "glibc.malloc.hugetlb=1"
"""Large buffers come and go in every round: in huge pages, where the kernel has them, that costs a fifth."""


@dataclass(frozen=True)
class Modules:
    """What is run as `python -m` for each tier; tests put fakes here."""

    cloud: str = "cloud_server"
    edge: str = "edge_server"
    agent: str = "device_agent"


def spread(devices: int, agents: int | None = None) -> list[int]:
    """Devices of each agent, as even as they go; by default one agent a core, at most one a device.

    Raises:
        BadInput: there is nothing to spread, or an agent would get no device.
    """
    if devices < 1:
        raise BadInput(f"a topology has at least one device, not {devices}", field="devices")
    count = min(os.cpu_count() or 1, devices) if agents is None else agents
    if not 1 <= count <= devices:
        raise BadInput(f"{devices} devices can be spread over 1 to {devices} agents, not {count}", field="agents")
    each, more = divmod(devices, count)
    return [each + (index < more) for index in range(count)]


def common(more: Mapping[str, str], tier_token: str) -> dict[str, str]:
    """The environment that all processes share: this one's, with `more` over it, and what must be so."""
    env = {**os.environ, **more}
    source = str(Path(__file__).resolve().parents[2])  # found also where the package is not installed
    return {
        **env,
        **dict.fromkeys(_ONE_THREAD, "1"),
        "PYTHONPATH": os.pathsep.join(filter(None, [source, env.get("PYTHONPATH")])),
        "PYTHONUNBUFFERED": "1",
        "GLIBC_TUNABLES": env.get("GLIBC_TUNABLES") or _MALLOC,
        "STRATA_TIER_TOKEN": tier_token,
        "STRATA_TIER_TOKEN_FILE": "",
        "STRATA_CACHE_DIR": env.get("STRATA_CACHE_DIR") or str(home.cache_folder()),
    }


def listening(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 = any free one.

    Raises:
        BadInput: the port cannot be had.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted cloud takes its old port
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise BadInput(f"port {port} of {host} cannot be had: {error.strerror}", field="port") from None
    return listener
