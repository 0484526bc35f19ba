"""What Redis says of itself, looked at now and then: whether it may lose what is stored, has lost some, or is another.

Redis removes keys without a word where its policy says so, and a restart or a failover replaces it by one that may hold
older data. Nothing here decides a result: what a round needs and does not find fails its commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from shared.storage.key_value import ServerInfo, Store

log = logging.getLogger(__name__)
EVERY_S = 2.0
"""Seconds between two looks."""


class StoreWatch:
    """Looks at the server of a store.

    Args:
        store: Redis.
        clock: monotonic seconds.

    Attributes:
        refusal: why nothing should be stored there, None if there is no such reason.
        warnings: what may go wrong later.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.clock = store, clock
        self.refusal: str | None = None
        self.warnings: tuple[str, ...] = ()
        self._before: ServerInfo | None = None
        self._due = -float("inf")

    async def look(self, *, now: bool = False) -> list[str]:
        """Look, if it is time to; returns what has happened since the last look.

        Raises:
            StoreUnavailable: the server does not answer.
        """
        if not now and self.clock() < self._due:
            return []
        info, before = await self.store.server(), self._before
        self._due, self._before = self.clock() + EVERY_S, info
        self._judge(info)
        happened = [f"Redis {what}" for what in _since(before, info)] if before else []
        for text in happened:
            log.warning("%s", text)
        return happened

    def _judge(self, info: ServerInfo) -> None:
        refusal, warnings = info.refusal(), info.warnings()
        if refusal and refusal != self.refusal:
            log.error("Redis %s", refusal)
        for text in warnings:
            if text not in self.warnings:
                log.warning("Redis %s", text)
        self.refusal, self.warnings = refusal, warnings


def _since(before: ServerInfo, info: ServerInfo) -> list[str]:
    if info.process != before.process:
        return ["was restarted, or another server took its place: what it stored last may be older or gone"]
    n_evicted = info.n_evicted - before.n_evicted
    return [f"has removed {n_evicted} keys, since its memory is full: what they held is gone"] if n_evicted > 0 else []
