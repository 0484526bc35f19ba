"""What must not be left over: files that nothing refers to, Redis keys, processes, ports."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from pathlib import Path

import redis

from shared.storage import redis_keys
from shared.storage.blobs import TEMPORARY
from tests.soak.proxy import HOST
from tests.soak.waits import Hang, until
from tests.soak.world import World

DIGEST = re.compile(r"[0-9a-f]{64}")
STAY = (
    redis_keys.CLOUD_DELETED,
    redis_keys.CLOUD_EDGES,
    redis_keys.CLOUD_EDGES_ALIVE,
    redis_keys.CLOUD_AGENTS,
    redis_keys.CLOUD_AGENTS_ALIVE,
    redis_keys.cloud_topology(),
    "cloud:idempotency:",
)
SETTLE_S = 20.0


def unreferenced(world: World) -> list[str]:
    """Files of cloud and edges that no key names, once they have had time to be collected."""
    return _settled(lambda: [*_unreferenced(world), *_unfinished(world)])


def after_delete(world: World, gone: Iterable[str]) -> list[str]:
    """What deleted runs have left; the disks of agents that went for good are out of reach."""
    skipped = {f"{name}/seats" for name in gone}

    def left() -> list[str]:
        files = [
            str(path.relative_to(world.folder))
            for room in ("blobs", "workers", "seats")
            for path in _files(world, room)
        ]
        mine = [path for path in files if not any(path.startswith(f"{room}/") for room in skipped)]
        return [*mine, *(key for key in _keys(world) if not key.startswith(STAY))]

    return _settled(left)


def after_stop(folder: Path, ports: Iterable[int]) -> list[str]:
    """Processes that were given this folder, and ports on which somebody still listens."""

    def left() -> list[str]:
        return [*_processes(folder), *(f"port {port}" for port in ports if _listens(port))]

    return _settled(left)


def _settled(look: object) -> list[str]:
    """What a look finds even after a while."""
    assert callable(look)
    try:
        until("nothing to be left", lambda: not look(), SETTLE_S, 0.5)
    except Hang:
        return list(look())
    return []


def _store(world: World) -> redis.Redis:
    return redis.Redis.from_url(world.topology.redis.url)


def _keys(world: World) -> list[str]:
    with _store(world) as store:
        return sorted(key.decode() for key in store.scan_iter(count=1000))


def _unreferenced(world: World) -> list[str]:
    """A file is referred to if its digest stands in what any key of its tier holds."""
    with _store(world) as store:
        held = {
            tier: {digest for key in store.scan_iter(f"{tier}:*") for digest in DIGEST.findall(_text(store, key))}
            for tier in ("cloud", "edge")
        }
    return [
        str(path.relative_to(world.folder))
        for path in _files(world, "blobs")
        if path.name not in held[path.relative_to(world.folder).parts[0].partition("-")[0]]
    ]


def _text(store: redis.Redis, key: bytes) -> str:
    kind = store.type(key)
    held = store.xrange(key) if kind == b"stream" else store.get(key) if kind == b"string" else b""
    return str(held)


def _files(world: World, room: str) -> list[Path]:
    return sorted(path for path in world.folder.glob(f"*/{room}/**/*") if path.is_file())


def _unfinished(world: World) -> list[str]:
    found = (path for name in world.names for path in (world.folder / name).rglob(f"{TEMPORARY}*"))
    return [str(path.relative_to(world.folder)) for path in found]


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
