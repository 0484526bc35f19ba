"""Checks for leftovers: unreferenced files, Redis keys, processes and ports."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from pathlib import Path

import redis

from shared.storage import redis_keys
from shared.storage.blobs import TEMPORARY
from tests.soak.deployment import Deployment
from tests.soak.proxy import HOST
from tests.waits import Hang, until

DIGEST = re.compile(r"[0-9a-f]{64}")
STAY = (
    redis_keys.CLOUD_DELETED,
    redis_keys.CLOUD_EDGES,
    redis_keys.CLOUD_EDGES_ALIVE,
    redis_keys.CLOUD_AGENTS,
    redis_keys.CLOUD_AGENTS_ALIVE,
    redis_keys.cloud_topology(),
    redis_keys.CLOUD_OWNER,
    redis_keys.CLOUD_LEASE,
    redis_keys.CLOUD_TURNS,
    "cloud:idempotency:",
)
SETTLE_S = 20.0


def unreferenced(deployment: Deployment) -> list[str]:
    """Returns files of cloud and edges that no key refers to, after some time for garbage collection."""
    return _settled(lambda: [*_unreferenced(deployment), *_unfinished(deployment)])


def after_delete(deployment: Deployment, gone: Iterable[str]) -> list[str]:
    """Returns what deleted runs have left; the disks of agents that were removed for good are not checked."""
    skipped = {f"{name}/seats" for name in gone}

    def left() -> list[str]:
        files = [
            str(path.relative_to(deployment.folder))
            for subfolder in ("blobs", "workers", "seats")
            for path in _files(deployment, subfolder)
        ]
        mine = [path for path in files if not any(path.startswith(f"{subfolder}/") for subfolder in skipped)]
        return [*mine, *(key for key in _keys(deployment) if not key.startswith(STAY))]

    return _settled(left)


def after_stop(folder: Path, ports: Iterable[int]) -> list[str]:
    """Returns processes that use this folder, and ports that are still open."""

    def left() -> list[str]:
        return [*_processes(folder), *(f"port {port}" for port in ports if _listens(port))]

    return _settled(left)


def _settled(look: object) -> list[str]:
    """Returns what `look` still finds after `SETTLE_S`."""
    assert callable(look)
    try:
        until("all leftovers to disappear", lambda: not look(), SETTLE_S, 0.5)
    except Hang:
        return list(look())
    return []


def _store(deployment: Deployment) -> redis.Redis:
    return redis.Redis.from_url(deployment.topology.redis.url)


def _keys(deployment: Deployment) -> list[str]:
    with _store(deployment) as store:
        return sorted(key.decode() for key in store.scan_iter(count=1000))


def _unreferenced(deployment: Deployment) -> list[str]:
    """Returns files whose digest is in no value of a Redis key of their tier."""
    with _store(deployment) as store:
        held = {
            tier: {digest for key in store.scan_iter(f"{tier}:*") for digest in DIGEST.findall(_text(store, key))}
            for tier in ("cloud", "edge")
        }
    return [
        str(path.relative_to(deployment.folder))
        for path in _files(deployment, "blobs")
        if path.name not in held[path.relative_to(deployment.folder).parts[0].partition("-")[0]]
    ]


def _text(store: redis.Redis, key: bytes) -> str:
    kind = store.type(key)
    held = store.xrange(key) if kind == b"stream" else store.get(key) if kind == b"string" else b""
    return str(held)


def _files(deployment: Deployment, subfolder: str) -> list[Path]:
    return sorted(path for path in deployment.folder.glob(f"*/{subfolder}/**/*") if path.is_file())


def _unfinished(deployment: Deployment) -> list[str]:
    found = (path for name in deployment.names for path in (deployment.folder / name).rglob(f"{TEMPORARY}*"))
    return [str(path.relative_to(deployment.folder)) for path in found]


def _processes(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder).encode() in environment or f"{folder}/" in command:
                found.append(f"process {entry.name}: {command}")
    return found


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex((HOST, port)) == 0
