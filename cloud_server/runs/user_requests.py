"""What a caller requests of runs: users see all runs, and change their own; the administrator changes all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloud_server.runs.checkpoint import RunUnreadable
from cloud_server.runs.manager import RunManager
from shared.core.errors import Forbidden, NotFound
from shared.run_records.runs import RunChange, RunInfo, owner_name
from shared.runtime.logs import log_event
from shared.spec.ends import Stop


@dataclass(frozen=True)
class UserRequests:
    """The requests of one caller that change runs.

    Attributes:
        manager: does what is requested.
        user: the caller's name, None for the administrator.

    Each raises `Forbidden` for a run of another owner, and what the manager's method of its name raises.
    """

    manager: RunManager
    user: str | None

    async def create(self, raw: dict[str, Any], key: str | None) -> RunInfo:
        """Create a run of the caller's."""
        info = await self.manager.create(raw, key, self.user)
        self._note("create", info.run)
        return info

    async def pause(self, run_id: str) -> RunInfo:
        """Pause after the present round."""
        return await self.manager.pause(await self._own("pause", run_id))

    async def stop_run(self, run_id: str) -> RunInfo:
        """Stop now; the present round is discarded."""
        return await self.manager.stop_run(await self._own("stop", run_id))

    async def resume(self, run_id: str, accept_changes: bool = False) -> RunInfo:
        """Continue a paused, stopped or failed run from its last checkpoint."""
        return await self.manager.resume(await self._own("resume", run_id), accept_changes)

    async def add_rounds(
        self, run_id: str, num_rounds: int, accept_changes: bool = False, stop: Stop | None = None
    ) -> RunInfo:
        """Add rounds to the end of a run."""
        return await self.manager.add_rounds(await self._own("add rounds", run_id), num_rounds, accept_changes, stop)

    async def change(self, run_id: str, change: RunChange) -> RunInfo:
        """Make room for more devices in a run that goes on; pin a run, or no longer."""
        own = await self._own("change", run_id)
        info = await self.manager.services.repository.info(own)
        if change.max_devices is not None:
            info = await self.manager.raise_max_devices(own, change.max_devices)
        return info if change.pinned is None else await self.manager.pin(own, change.pinned)

    async def delete(self, run_id: str, *, results: bool = False) -> None:
        """Delete a run that has ended; with its results folder if `results`, also where only that is left."""
        folders = self.manager.services.results
        try:
            found = await self._own("delete", run_id)
        except NotFound:
            if not results or (record := folders.record(run_id)) is None:
                raise
            self._check_owner(run_id, record.get("owner"))
            self._note("delete results", run_id)
            await folders.remove(run_id)
        else:
            await self.manager.delete(found, results=results)

    async def _own(self, what: str, run_id: str) -> str:
        """The id of a run that the caller may change.

        Raises:
            Forbidden: it is another owner's, or a user asks and it cannot be read whose it is.
        """
        try:
            info = await self.manager.services.repository.info(run_id)
        except RunUnreadable:
            if self.user is not None:
                raise Forbidden(f"run {run_id} cannot be read: only the administrator may delete it") from None
            return run_id
        self._check_owner(info.run, info.owner)
        self._note(what, info.run)
        return info.run

    def _check_owner(self, run_id: str, owner: str | None) -> None:
        if self.user not in (None, owner):
            whose = f"run {run_id} belongs to {owner_name(owner)}"
            raise Forbidden(f"{whose}: {self.user} may see it, and change runs of {self.user} only")

    def _note(self, what: str, run_id: str) -> None:
        log_event("run.requested", run=run_id, request=what, by=owner_name(self.user))
