"""Tells the run that trains when agents and edges fall silent, and when they are back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cloud_server.archive import Archive
from cloud_server.happenings import changes_told
from cloud_server.registry import Registry
from shared.errors import StrataError

log = logging.getLogger(__name__)
EVERY_S = 0.5


class Watch:
    """Looks at the registry again and again.

    Args:
        registry: who was heard when.
        archive: where events go.
        training: the run that trains, None if none does.
    """

    def __init__(self, registry: Registry, archive: Archive, training: Callable[[], str | None]) -> None:
        self.registry, self.archive, self.training = registry, archive, training
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._forever())

    async def stop(self) -> None:
        """End it."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _forever(self) -> None:
        while True:
            try:
                await self._look()
            except StrataError as error:  # the store is away: what changed meanwhile is not told, only shown
                log.warning("a change of state is not told: %s", error.detail)
            except Exception:
                log.exception("the watch failed")
            await asyncio.sleep(min(EVERY_S, self.registry.ttl_s / 4))

    async def _look(self) -> None:
        changes = self.registry.changes()
        for change in changes:
            log.info("%s %s is %s", change.kind, change.name, change.state)
        run_id = self.training()
        if run_id is not None:
            for told in changes_told(changes):
                await self.archive.event(run_id, told)
