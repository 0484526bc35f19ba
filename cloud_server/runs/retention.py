"""How long ended runs are kept, and how much their results may hold; what is beyond that is removed, oldest end first.

Never removed: a run that has not ended, one with whose model such a run begins, one that is pinned, one that this
version cannot read, and a results folder whose run the cloud does not have (any more).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from cloud_server.runs.manager import RunManager
from shared.core.errors import StrataError
from shared.core.formatting import size
from shared.core.os_errors import of_system
from shared.results.disk_use import folder_bytes
from shared.results.folder import RUN
from shared.run_records.removals import Removal, Removals
from shared.run_records.runs import FINAL, RunInfo
from shared.runtime.background import Repeating
from shared.runtime.logs import log_event

log = logging.getLogger(__name__)
EVERY_S = 3600.0
"""Seconds between two removals."""
DAY_S = 86400.0
REMOVED = "removed.ndjson"
"""The file beside the results folders with a line for each run that was removed."""


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended.

    Attributes:
        info: its document.
        ended_s: when its record was last written, in seconds since the epoch.
        n_bytes: of its results folder.
    """

    info: RunInfo
    ended_s: float
    n_bytes: int


def beyond(
    ended: Sequence[EndedRun], now_s: float, keep_days: float | None, keep_bytes: int | None
) -> list[tuple[EndedRun, str]]:
    """Returns the runs that are to be removed, in that order, each with the reason.

    Args:
        ended: all runs that have ended; pinned ones count as nothing, or who pins runs would have others' removed.
        now_s: seconds since the epoch.
        keep_days: days after its end for which a run is kept; None for ever.
        keep_bytes: bytes that the results of those not pinned may hold together; None for any number.
    """
    free = sorted((each for each in ended if not each.info.pinned), key=lambda each: (each.ended_s, each.info.order))
    removed: list[tuple[EndedRun, str]] = []
    held = sum(each.n_bytes for each in free)
    for each in free:
        days = (now_s - each.ended_s) / DAY_S
        if keep_days is not None and days > keep_days:
            why = f"it ended {days:.1f} days ago, runs are kept for {keep_days:g} (CLOUD_KEEP_DAYS)"
        elif keep_bytes is not None and held > keep_bytes and each.n_bytes:
            why = f"results hold {size(held)}, the limit is {size(keep_bytes)} (CLOUD_KEEP_BYTES)"
        else:
            continue
        removed.append((each, why))
        held -= each.n_bytes
    return removed


class Retention:
    """Removes ended runs that are kept no longer.

    Args:
        manager: knows and deletes runs.
        keep_days, keep_bytes: see `beyond`.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        manager: RunManager,
        keep_days: float | None,
        keep_bytes: int | None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.manager, self.keep_days, self.keep_bytes, self.wall = manager, keep_days, keep_bytes, wall
        self._lock = asyncio.Lock()
        self._repeating = Repeating(EVERY_S, self._remove_while_owned, "ended runs are not removed")

    def start(self) -> None:
        """Begin to remove, now and every hour."""
        if self.keep_days is not None or self.keep_bytes is not None:
            self._repeating.start()

    async def stop(self) -> None:
        """Stop that."""
        await self._repeating.stop()

    async def preview(self) -> Removals:
        """What would be removed now."""
        found = beyond(await self._ended(), self.wall(), self.keep_days, self.keep_bytes)
        return Removals(runs=tuple(_removal(each, why) for each, why in found))

    async def remove(self) -> Removals:
        """Remove it; returns what was.

        A run that cannot be removed now, as one that was resumed meanwhile, is left to the next time.

        Raises:
            SystemRefused: notes of what is removed cannot be written; then nothing more is removed.
        """
        path = self.manager.services.results.runs_dir / REMOVED
        async with self._lock:
            gone = []
            for removal in (await self.preview()).runs:
                with _opened(path) as notes:
                    try:
                        await self.manager.delete(removal.run, results=True, unless_pinned=True)
                    except StrataError as error:
                        log.warning("run %s is not removed: %s", removal.run, error.detail)
                        continue
                    notes.write(json.dumps(removal.model_dump(mode="json")) + "\n")
                log_event("run.removed", run=removal.run, reason=removal.reason, bytes=removal.n_bytes)
                gone.append(removal)
            return Removals(runs=tuple(gone))

    async def _remove_while_owned(self) -> None:
        await self.manager.services.ownership.held.wait()
        await self.remove()

    async def _ended(self) -> list[EndedRun]:
        infos = await self.manager.services.repository.infos()
        needed = {info.spec.init.source for info in infos if info.status not in FINAL and info.spec.init is not None}
        ended = [info for info in infos if info.status in FINAL and info.run not in needed]
        runs_dir = self.manager.services.results.runs_dir
        return await asyncio.to_thread(lambda: [_ended_run(info, runs_dir / info.run) for info in ended])


def _ended_run(info: RunInfo, folder: Path) -> EndedRun:
    try:
        ended_s = (folder / RUN).stat().st_mtime
    except OSError:  # somebody has removed it
        ended_s = datetime.fromisoformat(info.created_at).timestamp()
    return EndedRun(info, ended_s, folder_bytes(folder))


def _removal(each: EndedRun, why: str) -> Removal:
    info = each.info
    ended_at = datetime.fromtimestamp(each.ended_s, UTC).isoformat(timespec="seconds")
    return Removal(
        run=info.run, name=info.name, owner=info.owner, status=info.status, ended_at=ended_at, n_bytes=each.n_bytes,
        model_sha256=info.model_sha256, reason=why,
    )  # fmt: skip


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The file of notes, to which a line is added once a run is gone: without it nothing is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise of_system(error, path) from None
