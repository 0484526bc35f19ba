"""Trackers of running runs: each call sends what is new. Also checks whether the trackers of a spec can work here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import httpx2

from shared.core.errors import BadInput, NotFound
from shared.results.tracking.mlflow import MaybeCreated, MlflowServer, tracking_uri
from shared.results.tracking.scalars import Step, Tracked
from shared.results.tracking.tensorboard import EventFiles, check_tensorboard, write_tensorboard
from shared.run_records.runs import FINAL
from shared.runtime.compute_thread import ComputeThread
from shared.spec.run import Tracker, Trackers

_CHECKS: Mapping[Tracker, Callable[[], object]] = {"tensorboard": check_tensorboard, "mlflow": tracking_uri}


def check_trackers(wanted: Trackers) -> None:
    """Raises if one of these trackers cannot work on this machine.

    Raises:
        BadInput: names the field `tracking` and what is missing.
    """
    for tracker in wanted:
        try:
            _CHECKS[tracker]()
        except (BadInput, NotFound) as error:
            raise BadInput(f"tracking: {error.detail}", field="tracking") from None


class Live(Protocol):
    """A tracker."""

    async def export(self, tracked: Tracked) -> str:
        """Sends what is new of a run; returns its address or folder. May be retried after any error."""
        ...

    def forget(self, run_id: str) -> None:
        """Drops what is known of a run: a later `export` sends all of it."""
        ...


@dataclass
class TrackedRun:
    """The figures of a run that have been sent."""

    _figures: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)

    def new_steps(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        """The figures that are new or have changed: an evaluation comes later than its round."""
        found = []
        for step in steps:
            before = self._figures.get((step.round_no, step.kind), {})
            figures = {name: value for name, value in step.figures.items() if before.get(name) != value}
            if figures:
                found.append(replace(step, figures=figures))
        return tuple(found)

    def note(self, steps: Iterable[Step]) -> None:
        """Notes that these have been sent."""
        self._figures = {(step.round_no, step.kind): step.figures for step in steps}


class LiveTensorboard:
    """Event files in one folder for each run; at its end they are rewritten as an export writes them.

    Args:
        folder: for all runs.
        thread: the thread that writes.
    """

    def __init__(self, folder: Path, thread: ComputeThread) -> None:
        self._folder, self._thread = folder, thread
        self._open: dict[str, tuple[EventFiles, TrackedRun]] = {}

    async def export(self, tracked: Tracked) -> str:
        """Writes what is new."""
        return await self._thread.run(self._export, tracked)

    def _export(self, tracked: Tracked) -> str:
        run = tracked.info.run
        try:
            self._add(tracked)
        except BaseException:
            self._open.pop(run, None)
            raise
        return str(self._folder / run)

    def _add(self, tracked: Tracked) -> None:
        run, folder = tracked.info.run, self._folder / tracked.info.run
        if tracked.info.status in FINAL:
            self._close(run)
            write_tensorboard(tracked, folder)
            return
        if run not in self._open:
            self._open[run] = EventFiles(tracked, folder), TrackedRun()
        files, sent = self._open[run]
        files.add(sent.new_steps(tracked.steps))
        sent.note(tracked.steps)

    def forget(self, run_id: str) -> None:
        """Drops what is known of a run."""
        self._close(run_id)

    def _close(self, run: str) -> None:
        files, _ = self._open.pop(run, (None, None))
        if files is not None:
            files.close()


class LiveMlflow:
    """The tracking server that the environment names.

    Args:
        transport: what carries the requests, for tests.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._transport = transport
        self._sent: dict[str, TrackedRun] = {}
        self._maybe_created: set[str] = set()

    async def export(self, tracked: Tracked) -> str:
        """Sends what is new."""
        run = tracked.info.run
        sent = self._sent.setdefault(run, TrackedRun())
        new = replace(tracked, steps=sent.new_steps(tracked.steps))
        async with MlflowServer(tracking_uri(), self._transport) as server:
            try:
                await server.write(new, may_create=run not in self._maybe_created)
            except MaybeCreated:
                self._maybe_created.add(run)
                raise
        sent.note(tracked.steps)
        if tracked.info.status in FINAL:
            self.forget(run)
        return server.address

    def forget(self, run_id: str) -> None:
        """Drops what is known of a run."""
        self._sent.pop(run_id, None)
        self._maybe_created.discard(run_id)
