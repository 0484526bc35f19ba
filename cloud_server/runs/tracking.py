"""Exports runs to the trackers that their specs name, in the background: no round waits for a tracker.

A tracker that does not answer is tried again. A failure is reported by an event and in the run's `tracking.json`; it
never fails the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx2

from cloud_server.runs.checkpoint import StateUnreadable
from cloud_server.runs.events import RunEvent
from cloud_server.runs.repository import RunRepository
from shared.core.errors import NotFound, StrataError
from shared.results.folder import read_rounds
from shared.results.tracking.live import Live, LiveMlflow, LiveTensorboard
from shared.results.tracking.scalars import Tracked, tracked_of
from shared.results.tracking.tracker_notes import TrackerNote, read_notes, write_notes
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import FINAL, RunInfo
from shared.runtime.background import Repeating
from shared.runtime.compute_thread import ComputeThread
from shared.spec.run import Tracker

log = logging.getLogger(__name__)
EVERY_S = 5.0
"""Shortest pause between two exports, in wall seconds."""
SHARE = 0.1
"""Largest share of the wall time for exports: a long export is followed by a long pause,"""
MAX_WAIT_S = 60.0
"""but not by a longer one than this, in wall seconds, so that a server that hung is soon tried again."""
LIMIT_S = 60.0
"""Time limit of one export of a run to a tracker, in wall seconds."""
TRIES = 5
"""Failed exports after the end of a run before its tracker is given up."""
HEARD = frozenset({"run.status", "round.committed", "round.evaluated"})
"""The events after which a run is exported."""


@dataclass
class Tracking:
    """Exports runs to trackers.

    Attributes:
        runs_dir: the parent of the results folders.
        to: the trackers, by name.
        thread: the thread that writes files.
    """

    runs_dir: Path
    to: Mapping[Tracker, Live]
    thread: ComputeThread
    _due: set[str] = field(default_factory=set)
    _failed: dict[tuple[str, Tracker], int] = field(default_factory=dict)
    _looked: bool = False
    _exporting: Repeating | None = None

    def on_event(self, run_id: str, event: RunEvent) -> None:
        """Have a run exported after an event: soon, or at once if it has ended."""
        if event.kind in HEARD:
            self._due.add(run_id)
        ended = event.kind == "run.status" and event.data["status"] in FINAL
        if ended and self._exporting is not None:
            self._exporting.wake()

    def start(self, repository: RunRepository, held: asyncio.Event) -> None:
        """Begin with the runs whose end an earlier cloud process did not export.

        Args:
            repository: of the runs.
            held: set while this cloud owns the runs; otherwise nothing is exported.
        """
        self._exporting = Repeating(_pause_s, partial(self._turn, repository, held), "trackers wait")
        self._exporting.start()

    async def stop(self) -> None:
        """Stop exporting; missing exports follow when the cloud runs again."""
        if self._exporting is not None:
            await self._exporting.stop()
        self.thread.close()

    async def _turn(self, repository: RunRepository, held: asyncio.Event) -> None:
        await held.wait()
        if not self._looked:
            self._due |= await self._left(repository)
            self._looked = True
        for run_id in sorted(self._due):
            await self._export_due(repository, run_id)

    async def _left(self, repository: RunRepository) -> set[str]:
        """Returns the ended runs whose final status is missing at a tracker."""
        found = set()
        for info in await repository.infos():
            notes = await self.thread.run(read_notes, self.runs_dir / info.run) if info.tracking else {}
            if info.status in FINAL and any(_is_open(notes.get(tracker), info) for tracker in info.tracking):
                found.add(info.run)
        return found

    async def _export_due(self, repository: RunRepository, run_id: str) -> None:
        """Export a run that is due. If that fails it stays due, and the other runs are exported all the same."""
        self._due.discard(run_id)
        try:
            await self._export(repository, run_id)
        except StrataError as error:
            log.warning("trackers of run %s wait: %s", run_id, error.detail)
            self._due.add(run_id)
        except Exception:
            log.exception("run %s is not exported to its trackers", run_id)

    async def _export(self, repository: RunRepository, run_id: str) -> None:
        """Export the present state of a run to its trackers."""
        try:
            info = await repository.info(run_id)
            if not info.tracking or info.status == "pending":
                return
            rounds = await repository.rounds(run_id) + await self.thread.run(_evaluations, self.runs_dir / info.run)
            tracked = tracked_of(info, sorted(rounds, key=lambda row: (row.round_no, row.kind != "train")))
        except (NotFound, StateUnreadable):  # it was deleted meanwhile, or is of another version
            for name, tracker in self.to.items():
                tracker.forget(run_id)
                self._failed.pop((run_id, name), None)
            return
        for name in info.tracking:
            await self._export_to(repository, name, tracked)

    async def _export_to(self, repository: RunRepository, name: Tracker, tracked: Tracked) -> None:
        info = tracked.info
        address, error = await self._tried(name, tracked)
        before = self._failed.pop((info.run, name), 0)
        if error is not None:
            note = await self._failing(repository, name, info, error, before)
        else:
            if before:
                await repository.add_event(info.run, RunEvent("tracking.resumed", {"tracker": name}))
            note = TrackerNote(status=info.status, rounds=info.rounds, where=address)
        await self.thread.run(self._note, info, name, note)

    async def _failing(
        self, repository: RunRepository, name: Tracker, info: RunInfo, why: str, before: int
    ) -> TrackerNote:
        """Report a failed export, if it is the first or the last one; `before` is the number of failures so far."""
        ended = info.status in FINAL
        given_up = ended and before + 1 >= TRIES
        if given_up:
            why = f"{why[:1900]}; given up: `strata export {info.run} --to {name}` exports it"
            self.to[name].forget(info.run)
        else:
            self._failed[info.run, name] = before + 1 if ended else 1
            self._due.add(info.run)
        why = why[:2000]
        if given_up or not before:
            await repository.add_event(info.run, RunEvent("tracking.failed", {"tracker": name, "reason": why}))
        return TrackerNote(status=info.status if given_up else None, reason=why)

    async def _tried(self, name: Tracker, tracked: Tracked) -> tuple[str | None, str | None]:
        """Returns where the tracker shows the run, or why the export failed."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await self.to[name].export(tracked), None
        except TimeoutError:
            return None, f"{name} took longer than {LIMIT_S:g} s"
        except StrataError as error:
            return None, error.detail
        except Exception as error:
            log.exception("run %s is not exported to %s", tracked.info.run, name)
            return None, f"{type(error).__name__}: {error}"

    def _note(self, info: RunInfo, name: Tracker, note: TrackerNote) -> None:
        folder = self.runs_dir / info.run
        try:
            write_notes(folder, read_notes(folder) | {name: note})
        except OSError as error:
            log.warning("%s: %s", folder, error)


def tracking_of(runs_dir: Path, transport: httpx2.AsyncBaseTransport | None = None) -> Tracking:
    """The tracking of this cloud, with all trackers that a spec can name; `transport` replaces the network in tests."""
    thread = ComputeThread()
    to: dict[Tracker, Live] = {
        "tensorboard": LiveTensorboard(runs_dir / "tensorboard", thread),
        "mlflow": LiveMlflow(transport),
    }
    return Tracking(runs_dir, to, thread)


def _pause_s(failures: int, took_s: float) -> float:
    return max(EVERY_S, min(took_s / SHARE, MAX_WAIT_S))


def _evaluations(folder: Path) -> list[RoundInfo]:
    """The evaluation by all seats after the last round; only the results folder has it."""
    try:
        return [row for row in read_rounds(folder) if row.kind == "evaluate"]
    except NotFound:
        return []


def _is_open(note: TrackerNote | None, info: RunInfo) -> bool:
    """Whether the status with which a run ended is still missing at a tracker."""
    return note is None or note.status != info.status
