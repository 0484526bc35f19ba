"""The registered nodes in Redis: their entries for the next cloud process, and signs of life for observers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from cloud_server.nodes.liveness import AgentEntry, EdgeEntry
from shared.core.field_errors import told
from shared.core.records import Record
from shared.service.api.membership import EdgeHeartbeat
from shared.storage import redis_keys
from shared.storage.key_value import Batch, Store, StoreUnavailable

log = logging.getLogger(__name__)
E = TypeVar("E", bound=Record)
KEEP_S = 3600.0
"""Seconds for which a silent node stays registered."""


class StoredNodes:
    """Reads and writes nodes; every key has an expiry.

    Args:
        store: Redis.
        ttl_s: expiry of signs of life.
        clock: monotonic seconds.
    """

    def __init__(self, store: Store, ttl_s: float, clock: Callable[[], float]) -> None:
        self.store, self.ttl_s, self.clock = store, ttl_s, clock
        self._written: dict[tuple[str, str], float] = {}
        self._refused = False

    async def entries(self, prefix: str, kind: type[E]) -> list[E]:
        """The stored entries; a node whose entry this version cannot read is left to register again."""
        found = []
        for key, data in (await self.store.scan(prefix)).items():
            try:
                found.append(kind.model_validate_json(data))
            except ValidationError as error:
                log.warning("%s is of another version: %s", key, told(error))
        return found

    async def put(self, key: str, entry: Record) -> None:
        """Store the entry of a node."""
        await self.store.put(key, entry.model_dump_json().encode(), KEEP_S)

    async def delete(self, key: str) -> None:
        """Delete the entry of a node."""
        await self.store.delete(key)

    async def refresh(self, beat: EdgeHeartbeat, edge: EdgeEntry, agents: Mapping[str, AgentEntry]) -> None:
        """Write signs of life of an edge and of the agents that it hears, and keep their entries from expiring."""
        now = self.clock()
        batch = self._refresh_alive_key(Batch(), now, ("edge", beat.edge), redis_keys.cloud_edge_alive(beat.edge), b"1")
        if self._claim_refresh(now, ("edge entry", beat.edge), KEEP_S):
            batch.put(redis_keys.cloud_edge(beat.edge), edge.model_dump_json().encode(), KEEP_S)
        for line in beat.roster:
            agent = agents.get(line.agent)
            if agent is None or line.age_s >= self.ttl_s:
                continue
            seen = json.dumps({"edge": beat.edge, "visiting": line.visiting}).encode()
            self._refresh_alive_key(batch, now, ("agent", line.agent), redis_keys.cloud_agent_alive(line.agent), seen)
            if self._claim_refresh(now, ("agent entry", line.agent), KEEP_S):
                batch.put(redis_keys.cloud_agent(line.agent), agent.model_dump_json().encode(), KEEP_S)
        if not batch.puts:
            return
        try:
            await self.store.commit(batch)
            self._refused = False
        except StoreUnavailable as error:  # liveness itself does not depend on the store
            self._written.clear()
            log.log(logging.DEBUG if self._refused else logging.WARNING, "signs of life wait: %s", error.detail)
            self._refused = True

    def _refresh_alive_key(self, batch: Batch, now: float, what: tuple[str, str], key: str, value: bytes) -> Batch:
        return batch.put(key, value, self.ttl_s) if self._claim_refresh(now, what, self.ttl_s) else batch

    def _claim_refresh(self, now: float, what: tuple[str, str], ttl_s: float) -> bool:
        """Whether a key with a TTL is to be written again; if so, the caller must write it: it counts as written now.

        A key is refreshed four times in its TTL, not at every one of thousands of heartbeats a second.
        """
        due = now - self._written.get(what, -ttl_s) >= ttl_s / 4
        if due:
            self._written[what] = now
        return due
