"""Brings runs to the trackers that their specs name, beside the rounds: none that trains waits for it.

A tracker that is away is tried again; what it cannot take is told by an event and in the run's `tracking.json`, and is
never the run's failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from cloud_server.runs.events import RunEvent
from cloud_server.runs.repository import RunRepository, StateGone
from shared.core.errors import NotFound, StrataError
from shared.results.folder import read_rounds
from shared.results.tracking.live import Live, LiveMlflow, LiveTensorboard
from shared.results.tracking.progress import TrackerNote, read_notes, write_notes
from shared.results.tracking.scalars import Tracked, tracked_of
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import FINAL, RunInfo
from shared.runtime.background import Repeating
from shared.runtime.worker import Worker
from shared.spec.run import Tracker

log = logging.getLogger(__name__)
EVERY_S = 5.0
"""Between two looks at what is new."""
SHARE = 0.1
"""Of the wall time, at most, goes to trackers: after a long look there is a long pause,"""
LONGEST_S = 60.0
"""but no longer one, so that a server that hung is soon asked again."""
LIMIT_S = 60.0
"""For one run and tracker at a time."""
TRIES = 5
"""At the end of a run, before a tracker is given up."""
HEARD = frozenset({"run.status", "round.committed", "round.evaluated"})


@dataclass
class Tracking:
    """The cloud's trackers.

    Args:
        runs_dir: where results folders are.
        to: the trackers, by name.
        worker: the thread that writes files.
    """

    runs_dir: Path
    to: Mapping[Tracker, Live]
    worker: Worker
    _due: set[str] = field(default_factory=set)
    _failed: dict[tuple[str, Tracker], int] = field(default_factory=dict)
    _looked: bool = False
    _bringing: Repeating | None = None

    def hear(self, run_id: str, event: RunEvent) -> None:
        """Something happened to a run: it is looked at soon, at its end at once."""
        if event.kind in HEARD:
            self._due.add(run_id)
        ended = event.kind == "run.status" and event.data["status"] in FINAL
        if ended and self._bringing is not None:
            self._bringing.wake()

    def start(self, archive: RunRepository) -> None:
        """Begin, with the runs whose end an earlier cloud process did not bring to their trackers."""
        self._bringing = Repeating(_pause_s, partial(self._turn, archive), "trackers wait")
        self._bringing.start()

    async def stop(self) -> None:
        """Let go; what has not been brought is when the cloud is back."""
        if self._bringing is not None:
            await self._bringing.stop()
        self.worker.close()

    async def _turn(self, archive: RunRepository) -> None:
        if not self._looked:
            self._due |= await self._left(archive)
            self._looked = True
        for run_id in sorted(self._due):
            await self._look_at(archive, run_id)

    async def _left(self, archive: RunRepository) -> set[str]:
        """The runs that have ended and of whose end a tracker has not been told."""
        found = set()
        for info in await archive.infos():
            notes = await self.worker.run(read_notes, self.runs_dir / info.run) if info.tracking else {}
            if info.status in FINAL and any(_is_open(notes.get(tracker), info) for tracker in info.tracking):
                found.add(info.run)
        return found

    async def _look_at(self, archive: RunRepository, run_id: str) -> None:
        """Look at a run that is due; it stays so where the store is away, and none waits for another's trouble."""
        self._due.discard(run_id)
        try:
            await self._look(archive, run_id)
        except StrataError as error:
            log.warning("trackers of run %s wait: %s", run_id, error.detail)
            self._due.add(run_id)
        except Exception:
            log.exception("run %s is not brought to its trackers", run_id)

    async def _look(self, archive: RunRepository, run_id: str) -> None:
        """Bring a run to its trackers, as far as it is."""
        try:
            info = await archive.info(run_id)
            if not info.tracking or info.status == "pending":
                return
            rounds = await archive.rounds(run_id) + await self.worker.run(_evaluations, self.runs_dir / info.run)
            tracked = tracked_of(info, sorted(rounds, key=lambda row: (row.round_no, row.kind != "train")))
        except (NotFound, StateGone):  # deleted meanwhile, or of another version
            for name, tracker in self.to.items():
                tracker.forget(run_id)
                self._failed.pop((run_id, name), None)
            return
        for name in info.tracking:
            await self._bring(archive, name, tracked)

    async def _bring(self, archive: RunRepository, name: Tracker, tracked: Tracked) -> None:
        info = tracked.info
        where, why = await self._tried(name, tracked)
        before = self._failed.pop((info.run, name), 0)
        if why is not None:
            note = await self._failing(archive, name, info, why, before)
        else:
            if before:
                await archive.event(info.run, RunEvent("tracking.resumed", {"tracker": name}))
            note = TrackerNote(status=info.status, rounds=info.rounds, where=where)
        await self.worker.run(self._note, info, name, note)

    async def _failing(
        self, archive: RunRepository, name: Tracker, info: RunInfo, why: str, before: int
    ) -> TrackerNote:
        """Tell of it at the first time, and when a tracker is given up; `before`: how often it failed until now."""
        ended = info.status in FINAL
        given_up = ended and before + 1 >= TRIES
        if given_up:
            why = f"{why[:1900]}; given up: `strata export {info.run} --to {name}` brings it"
            self.to[name].forget(info.run)
        else:
            self._failed[info.run, name] = before + 1 if ended else 1
            self._due.add(info.run)
        why = why[:2000]
        if given_up or not before:
            await archive.event(info.run, RunEvent("tracking.failed", {"tracker": name, "reason": why}))
        return TrackerNote(status=info.status if given_up else None, reason=why)

    async def _tried(self, name: Tracker, tracked: Tracked) -> tuple[str | None, str | None]:
        """Where a run is found now, or why it is not brought there."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await self.to[name].bring(tracked), None
        except TimeoutError:
            return None, f"{name} took longer than {LIMIT_S:g} s"
        except StrataError as error:
            return None, error.detail
        except Exception as error:
            log.exception("run %s is not brought to %s", tracked.info.run, name)
            return None, f"{type(error).__name__}: {error}"

    def _note(self, info: RunInfo, name: Tracker, note: TrackerNote) -> None:
        folder = self.runs_dir / info.run
        try:
            write_notes(folder, read_notes(folder) | {name: note})
        except OSError as error:
            log.warning("%s: %s", folder, error)


def tracking_of(runs_dir: Path, transport: httpx.AsyncBaseTransport | None = None) -> Tracking:
    """The trackers that a spec can name; `transport` stands in for the network in tests."""
    worker = Worker()
    to: dict[Tracker, Live] = {
        "tensorboard": LiveTensorboard(runs_dir / "tensorboard", worker),
        "mlflow": LiveMlflow(transport),
    }
    return Tracking(runs_dir, to, worker)


def _pause_s(failures: int, took_s: float) -> float:
    return max(EVERY_S, min(took_s / SHARE, LONGEST_S))


def _evaluations(folder: Path) -> list[RoundInfo]:
    """The evaluations by all seats after the last round, which the results folder alone keeps."""
    try:
        return [row for row in read_rounds(folder) if row.kind == "evaluate"]
    except NotFound:
        return []


def _is_open(note: TrackerNote | None, info: RunInfo) -> bool:
    """Whether a tracker has not been told how a run ended."""
    return note is None or note.status != info.status
