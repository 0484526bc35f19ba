"""Tells the run that trains when agents, edges or the store fall silent, and when they are back."""

from __future__ import annotations

import time
from collections.abc import Callable

from cloud_server.nodes.registry import Registry
from cloud_server.runs.events import RunEvent, node_events
from cloud_server.runs.repository import RunRepository
from shared.run_records.runs import RunInfo
from shared.runtime.background import Repeating
from shared.runtime.logs import log_event
from shared.storage.key_value import StoreUnavailable

EVERY_S = 0.5


class LivenessMonitor:
    """Looks at the registry again and again.

    Args:
        registry: who was heard when.
        archive: where events go.
        training: the run that trains, None if none does.
    """

    def __init__(self, registry: Registry, archive: RunRepository, training: Callable[[], RunInfo | None]) -> None:
        self.registry, self.repository, self.training = registry, archive, training
        self._away: tuple[float, str] | None = None
        self._untold: list[RunEvent] = []
        self._looking = Repeating(min(EVERY_S, registry.ttl_s / 4), self._look, "a change of state is not reported")

    def start(self) -> None:
        """Begin to look."""
        self._looking.start()

    async def stop(self) -> None:
        """End it."""
        await self._looking.stop()

    async def _look(self) -> None:
        try:
            await self.repository.store.ping()
            await self._report()
        except StoreUnavailable as error:  # what has changed is reported once the store is back
            self._away = self._away or (time.monotonic(), error.detail)

    async def _report(self) -> None:
        await self._told_away()
        changes = self.registry.changes()
        self._untold += node_events(changes)
        info = self.training()
        for change in changes if info is None else ():  # else it is an event of the run, and logged as that
            log_event(f"node.{change.state}", kind=change.kind, name=change.name)
        while self._untold and info is not None:
            await self.repository.event(info.run, self._untold[0])
            del self._untold[0]
        self._untold.clear()

    async def _told_away(self) -> None:
        """The store is back: the run says for how long it waited."""
        if self._away is None:
            return
        (began, why), info = self._away, self.training()
        if info is not None:
            reason = f"waited {time.monotonic() - began:.0f} s: {why}"[:2000]
            await self.repository.event(info.run, RunEvent("run.status", {"status": info.status, "reason": reason}))
        self._away = None
