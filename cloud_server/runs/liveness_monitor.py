"""Reports to the runs that train when agents, edges or the store become silent, and when they are back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from cloud_server.nodes.liveness import StateChange
from cloud_server.nodes.registry import Registry
from cloud_server.runs.events import RunEvent, node_events
from cloud_server.runs.repository import RunRepository
from cloud_server.runs.store_watch import StoreWatch
from shared.core.clocks import is_off, told_clock
from shared.run_records.runs import RunInfo
from shared.runtime.background import Repeating
from shared.runtime.logs import log_event
from shared.storage.key_value import StoreUnavailable

log = logging.getLogger(__name__)
EVERY_S = 0.5
"""Longest pause between two checks; with a TTL below 2 s, a quarter of the TTL."""


class LivenessMonitor:
    """Checks the registry and the store again and again.

    Args:
        registry: knows when each node was last heard.
        repository: where events go.
        training: the runs that train.
        watch: looks at the store's server.
    """

    def __init__(
        self,
        registry: Registry,
        repository: RunRepository,
        training: Callable[[], Sequence[RunInfo]],
        watch: StoreWatch,
    ) -> None:
        self.registry, self.repository, self.training, self.watch = registry, repository, training, watch
        self._wrong_clocks: set[tuple[str, str]] = set()
        self._store_lost: tuple[float, str] | None = None
        self._unreported: list[tuple[str, RunEvent]] = []
        self._one_at_a_time = asyncio.Lock()
        self._checking = Repeating(min(EVERY_S, registry.ttl_s / 4), self.check, "a change of state is not reported")

    def start(self) -> None:
        """Begin to check."""
        self._checking.start()

    async def stop(self) -> None:
        """Stop the background task."""
        await self._checking.stop()

    async def check(self) -> None:
        """Report what has changed since the last check; a run checks before it ends, so that its record is complete."""
        async with self._one_at_a_time:
            try:
                await self.repository.store.ping()
                self.registry.store_lost = False
                await self._report_store()
                happened = [RunEvent("store.changed", {"reason": text}) for text in await self.watch.look()]
                self._unreported += [(info.run, event) for event in happened for info in self.training()]
                await self._report_nodes()
            except StoreUnavailable as error:  # what has changed is reported once the store is back
                self._store_lost = self._store_lost or (time.monotonic(), error.detail)
                self.registry.store_lost = True

    async def _report_store(self) -> None:
        """The store answers; if it did not before, an event of the run says for how long."""
        if self._store_lost is None:
            return
        lost_at, why = self._store_lost
        for info in self.training():
            reason = f"waited {time.monotonic() - lost_at:.0f} s: {why}"[:2000]
            await self.repository.add_event(info.run, RunEvent("run.status", {"status": info.status, "reason": reason}))
        self._store_lost = None

    async def _report_nodes(self) -> None:
        changes, training = self.registry.changes(), self.training()
        events = [*node_events(changes, self._reason), *self._other_events()]
        self._unreported += [(info.run, event) for event in events for info in training]
        for change in () if training else changes:  # otherwise the runs' events are logged
            log_event(f"node.{change.state}", kind=change.kind, name=change.name)
        while self._unreported:
            await self.repository.add_event(*self._unreported[0])
            del self._unreported[0]

    def _reason(self, change: StateChange) -> str | None:
        registry, known = self.registry, change.name
        if change.kind == "edge":
            return registry.edge_reason(known) if known in registry.edges else None
        return registry.agent_reason(known) if known in registry.agents else None

    def _other_events(self) -> list[RunEvent]:
        """Registrations that were refused, and nodes whose clocks are found to be wrong; the log has both."""
        found = [RunEvent("node.refused", refused._asdict()) for refused in self.registry.call_back.take_untold()]
        for kind, name, ahead_s in self.registry.clocks():
            off, known = is_off(ahead_s), (kind, name) in self._wrong_clocks
            if off and not known:
                text = told_clock(f"{kind} {name}", ahead_s)
                log.warning("%s, compared with the cloud's", text)
                found.append(RunEvent("node.clock", {"kind": kind, "name": name, "reason": text}))
                self._wrong_clocks.add((kind, name))
            if not off:
                self._wrong_clocks.discard((kind, name))
        return found
