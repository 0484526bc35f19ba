"""Writes the results folders of runs while the next rounds run, quick rounds several at a time.

The cloud reads back only the number of the last round that was written, to add what it missed when it was killed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cloud_server.runs.events import now
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.round_map import round_map
from shared.core.errors import StrataError
from shared.core.number_sets import NumberSet
from shared.core.os_errors import of_system
from shared.core.validation import ID
from shared.federation.experiment import Experiment
from shared.federation.groups import groups_of
from shared.federation.inference import Trained
from shared.federation.population import counts_of
from shared.results.folder import RUN, SETTLED
from shared.results.manifest import Manifest
from shared.results.run_list import record_in
from shared.results.writer import has_seats, last_round, write_begun, write_results
from shared.results.writer_lock import WriterLock
from shared.run_records.groups import group_fields
from shared.run_records.rounds import Evaluation, RoundInfo
from shared.run_records.runs import FINAL, SEATS_A_PAGE, RunInfo, SeatInfo
from shared.runtime.compute_thread import ComputeThread
from shared.storage.blobs import StorageFailed

log = logging.getLogger(__name__)
REMOVED = 2
"""How often a write begins again since somebody removed the folder meanwhile."""
EVERY_S = 1.0
"""Wall seconds between two writes; rounds that are committed faster are written together."""


class RoundDone(NamedTuple):
    """A committed round to be written, and the run as it was then; `due` as long as its evaluation is pending."""

    info: RunInfo
    experiment: Experiment
    placement: PlacementManager
    detail: RoundInfo
    due: bool = False

    def evaluated(self, scores: dict[str, Evaluation] | None) -> RoundDone:
        """The round with its evaluation; None if there will be none."""
        return self._replace(
            detail=self.detail if scores is None else self.detail.replace(evaluation=scores), due=False
        )


@dataclass
class ResultsFolder:
    """Writes `runs/<id>/` of one run.

    A round is written once its evaluation, which runs beside the next round, has ended. So tables only grow at their
    end, each line is written once, and no round waits for an evaluation.

    Attributes:
        runs_dir: the parent of the folders.
        thread: the thread that writes; not the one that the next round waits for.
        state: the folder in which the cloud keeps its state.
        started: by run, when this process first wrote its folder.
    """

    runs_dir: Path
    thread: ComputeThread
    state: Path = Path()
    started: dict[str, str] = field(default_factory=dict)
    _waiting: list[RoundDone] = field(default_factory=list)
    _writing: asyncio.Task[None] | None = None
    _settling: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _wrote_at: float = -EVERY_S
    _lock: WriterLock | None = None

    def folder(self, run_id: str) -> Path:
        """The folder of a run."""
        return self.runs_dir / run_id

    async def begun(self, info: RunInfo) -> None:
        """Write the spec and the record of a run alone: it has committed nothing, or the rest cannot be written."""
        await self.settle()
        await self.thread.run(self._begun, info)

    def _begun(self, info: RunInfo) -> None:
        folder = self.folder(info.run)
        with self._writing_of(info, folder):
            write_begun(folder, info)

    @contextmanager
    def _writing_of(self, info: RunInfo, folder: Path) -> Iterator[None]:
        """Hold the folder's lock from the first write on until one that records an end or a pause."""
        self._lock = self._lock or WriterLock(folder, self.state)
        with result_errors(info.run, folder):
            self._lock.take()
            yield
        if info.status in SETTLED:
            self._lock.release(completed=info.status == "completed")

    async def last(self, run_id: str) -> int:
        """The last training round in a run's folder, 0 for none, and where files were removed from it."""
        return await self.thread.run(last_round, self.folder(run_id))

    async def round_done(self, done: RoundDone) -> None:
        """Have a round written, soon or with its evaluation; an error of an earlier write is raised here."""
        if self._writing is not None and self._writing.done():
            await self.settle()
        self._waiting.append(done)
        if self._writing is None:
            self._settling = False
            self._writing = asyncio.create_task(self._write_waiting())
        self._news.set()

    def evaluated(self, run_id: str, round_no: int, scores: dict[str, Evaluation] | None) -> None:
        """Report the evaluation of a round that waits for it; None if there will be none."""
        for at, done in enumerate(self._waiting):
            if done.due and (done.info.run, done.detail.round_no) == (run_id, round_no):
                self._waiting[at] = done.evaluated(scores)
        self._news.set()

    async def _write_waiting(self) -> None:
        """Write rounds until none waits: every `EVERY_S` seconds, or at once if `settle` was called."""
        clock = asyncio.get_running_loop().time
        while self._waiting:
            self._news.clear()
            n = next((at for at, done in enumerate(self._waiting) if done.due), len(self._waiting))
            pause_s = self._wrote_at + EVERY_S - clock()
            if not self._settling and (n == 0 or pause_s > 0):
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s if n else EVERY_S):
                        await self._news.wait()
                continue
            n = len(self._waiting) if self._settling else n
            ready, self._waiting = self._waiting[:n], self._waiting[n:]
            newest, rounds = ready[-1], [done.detail for done in ready]
            self._wrote_at = clock()
            await self.thread.run(self._write, newest.info, newest.experiment, newest.placement, rounds)

    async def settle(self) -> None:
        """Wait until all rounds are written; an error is raised here. What is missing then is written at a resume."""
        self._settling = True
        self._news.set()
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                await writing
        except BaseException:
            self._waiting.clear()
            raise

    async def close(self) -> None:
        """Write the waiting rounds. An error is only logged: a resumed run continues from the store."""
        try:
            await self.settle()
        except StrataError as error:
            log.warning("results folder: %s", error.detail)
        if self._lock is not None:
            self._lock.release(completed=False)

    async def ended(
        self,
        info: RunInfo,
        experiment: Experiment,
        placement: PlacementManager,
        rounds: Sequence[RoundInfo],
        trained: Trained,
    ) -> None:
        """Write all rounds with their evaluations, and the models with what their use needs."""
        await self.settle()
        await self.thread.run(self._write, info, experiment, placement, rounds, trained)

    def _write(
        self,
        info: RunInfo,
        experiment: Experiment,
        placement: PlacementManager,
        rounds: Sequence[RoundInfo],
        trained: Trained | None = None,
    ) -> None:
        manifest = Manifest.of(
            info,
            started_at=self.started.setdefault(info.run, now()),
            ended_at=now() if info.status in FINAL else None,
        )
        folder = self.folder(info.run)
        listed = NumberSet(experiment.population.seats.numbers.array[:SEATS_A_PAGE])
        seats = () if has_seats(folder) else seat_infos(info.run, experiment, placement, {}, listed)
        with self._writing_of(info, folder):
            for _ in range(REMOVED):
                with suppress(FileNotFoundError):
                    return write_results(folder, info, rounds, model=trained, manifest=manifest, seats=seats)
            write_results(folder, info, rounds, model=trained, manifest=manifest, seats=seats)


class ResultsIncomplete(StorageFailed):
    """A file of a results folder could not be written (507); the message says which, why and what helps."""

    code = "results_incomplete"


@contextmanager
def result_errors(run_id: str, folder: Path) -> Iterator[None]:
    """Turns an `OSError` into `ResultsIncomplete`."""
    try:
        yield
    except OSError as error:
        why = f"the results cannot be written: {of_system(error, folder).detail}"
        rest = f"`strata resume {run_id}` writes them once that is mended, `strata pull {run_id}` fetches the model"
        raise ResultsIncomplete(f"{why}. The cloud keeps rounds and model: {rest}") from error


@dataclass
class ResultsFolders:
    """The results folders of all runs; each is written for itself.

    Attributes:
        runs_dir: the parent of the folders.
        thread: the thread that writes.
        state: the folder in which the cloud keeps its state.
    """

    runs_dir: Path
    thread: ComputeThread
    state: Path = Path()
    _runs: dict[str, ResultsFolder] = field(default_factory=dict)

    def folder(self, run_id: str) -> Path:
        """The folder of a run."""
        return self.runs_dir / run_id

    def of(self, run_id: str) -> ResultsFolder:
        """The writer of a run's folder."""
        return self._runs.setdefault(run_id, ResultsFolder(self.runs_dir, self.thread, self.state))

    def record(self, run_id: str) -> dict[str, Any] | None:
        """What the results folder of a run says of it, as far as it can be read; None without such a folder."""
        folder = self.folder(run_id)
        return record_in(folder) if re.fullmatch(ID, run_id) and (folder / RUN).is_file() else None

    async def remove(self, run_id: str) -> None:
        """Remove the results folder of a run that nothing writes any more, if there is one.

        Raises:
            StrataError: the system refuses.
        """
        self._runs.pop(run_id, None)
        if self.record(run_id) is not None:
            await self.thread.run(_remove, self.folder(run_id))

    async def close(self) -> None:
        """Write the waiting rounds of all runs; errors are only logged."""
        for results in self._runs.values():
            await results.close()


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise of_system(error, folder) from None


def seat_infos(
    run_id: str, experiment: Experiment, placement: PlacementManager, retired: dict[int, str], numbers: NumberSet
) -> tuple[SeatInfo, ...]:
    """Some seats of a run, with their data and the agents that host them now."""
    population, now_map = experiment.population, round_map(run_id, experiment, placement)
    seats = population.seats.among(numbers)
    rows = []
    for planned, counts in zip(seats, counts_of(seats, experiment.population.labels), strict=True):
        seat = experiment.seat(planned.number, now_map.profile(planned.number))
        agent, visited = placement.placement.agent_of(seat.number), now_map.edge_of(seat.number)
        worker = seat.role == "worker"
        state = "worker" if worker else "empty" if agent is None else "taken"
        if agent is not None and placement.registry.is_offline(agent):
            state = "offline"
        if agent is not None and not placement.registry.agent_is_live(agent):
            state = "lost"
        if seat.number in retired:
            state = "retired"
        rows.append(
            SeatInfo(
                seat=seat.number,
                role=seat.role,
                home=seat.home_edge,
                edge=now_map.edges.get(seat.home_edge if visited is None else visited),
                agent=agent,
                state=state,
                reason=retired.get(seat.number),
                profile=seat.profile.name,
                straggler=seat.profile.slowdown > 1,
                faulty=experiment.faults is not None and seat.number in experiment.faults,
                compute_sps=seat.profile.compute_sps,
                up_bps=None if worker else seat.profile.up_bps,
                down_bps=None if worker else seat.profile.down_bps,
                latency_s=None if worker else seat.latency_to(seat.home_edge),
                n_train=seat.n_train,
                n_test=seat.n_test,
                label_counts=() if worker else tuple(int(count) for count in counts),
                **group_fields(groups_of(experiment.data, seat)),
            )
        )
    return tuple(rows)
