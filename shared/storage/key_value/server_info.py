"""What a Redis server says of itself, and whether what is stored in it can be trusted to stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.storage.key_value.redis_errors import CLUSTER

SET = "`CONFIG SET maxmemory-policy noeviction`, or give StrataFL a Redis of its own"


@dataclass(frozen=True)
class ServerInfo:
    """A part of the answer to `INFO`.

    Attributes:
        process: drawn by each process of Redis.
        cluster: whether it is in cluster mode.
        replica: whether it only copies another one, and takes no writes.
        policy: `maxmemory-policy`; empty if it is not said.
        limit_bytes: `maxmemory`, 0 for none.
        n_evicted: keys that were evicted since the process began.
        appends: whether every write is in an append-only file.
    """

    process: str = ""
    cluster: bool = False
    replica: bool = False
    policy: str = ""
    limit_bytes: int = 0
    n_evicted: int = 0
    appends: bool = True

    @property
    def evicts(self) -> bool:
        """Whether it may remove any key when its memory is full."""
        return self.policy.startswith("allkeys") and self.limit_bytes > 0

    def refusal(self) -> str | None:
        """Why nothing can be stored in it safely: the end of a sentence that begins with Redis; None if it can be."""
        if self.cluster:
            return CLUSTER
        if self.evicts:
            return f"removes keys when its memory is full (maxmemory-policy {self.policy}): rounds would vanish; {SET}"
        return "is a replica, which takes no writes: name its master" if self.replica else None

    def warnings(self) -> tuple[str, ...]:
        """What may go wrong later, as such sentences."""
        found: tuple[str, ...] = ()
        if not self.policy:
            found += ("does not say its maxmemory-policy: make sure that it is noeviction",)
        elif self.policy.startswith("allkeys") and not self.evicts:
            found += (f"would remove keys (maxmemory-policy {self.policy}) once its memory is limited; {SET}",)
        elif self.policy.startswith("volatile") and self.limit_bytes:
            found += (f"may remove leases and signs of life when its memory is full ({self.policy}); {SET}",)
        return found if self.appends else (*found, "has no append-only file: a restart of it may lose rounds")


def server_info(answer: Mapping[str, Any]) -> ServerInfo:
    """Returns the part of an answer to `INFO`, as the client has decoded it."""
    return ServerInfo(
        process=str(answer.get("run_id", "")),
        cluster=answer.get("redis_mode") == "cluster" or answer.get("cluster_enabled") == 1,
        replica=answer.get("role") == "slave",
        policy=str(answer.get("maxmemory_policy", "")),
        limit_bytes=int(answer.get("maxmemory", 0)),
        n_evicted=int(answer.get("evicted_keys", 0)),
        appends=answer.get("aof_enabled", 1) != 0,
    )
