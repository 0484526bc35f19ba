"""The lives of runs: one trains at a time, the others are pending; a restarted cloud goes on where it stood."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import UTC, datetime
from typing import Any

from cloud_server.runs.events import RunEvent, now
from cloud_server.runs.executor import RequestedState, RunExecutor
from cloud_server.runs.liveness_monitor import LivenessMonitor
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.results_writer import seat_infos
from cloud_server.runs.state import CloudServices
from shared.core.errors import Conflict, NotFound, StrataError
from shared.core.records import TensorMap, canonical
from shared.federation.experiment import Experiment
from shared.federation.spec_parser import parse_run_spec
from shared.results.tracking.live import check_trackers
from shared.run_records.runs import FINAL, RunInfo, SeatInfo, Status
from shared.runtime.background import Repeating
from shared.service.retry import backoff
from shared.spec.experiment import ExperimentSpec
from shared.storage.key_value import StoreUnavailable
from shared.training.compute_device import compute_device_of
from shared.wire import codec

log = logging.getLogger(__name__)
UNFINISHED = ("starting", "running", "pausing", "stopping")
WAITING = "waiting: another run trains"
LOOK_S = 5.0
"""Seconds between two looks for pending runs; a new one is found at once."""


class RunManager:
    """Takes runs in the order of their creation."""

    def __init__(self, tools: CloudServices) -> None:
        self.services = tools
        self.executor: RunExecutor | None = None
        self._left: RunInfo | None = None
        self._watch = LivenessMonitor(
            tools.registry, tools.repository, lambda: self.executor.info if self.executor else None
        )
        self._lock = asyncio.Lock()
        self._interrupted: str | None = "the cloud was restarted"
        self._training = Repeating(_pause_s, self._turn, "runs wait")

    def start(self) -> None:
        """Take up what an earlier cloud process left, then train what is pending."""
        self._training.start()
        self._watch.start()

    async def stop(self) -> None:
        """Let go; a run in the middle of a round resumes from its last committed one when the cloud is back."""
        await self._watch.stop()
        await self._training.stop()
        await self.services.evaluator.drop()

    # ---- what people ask for

    async def create(self, raw: dict[str, Any], key: str | None) -> RunInfo:
        """A new run of a spec.

        Raises:
            BadInput: the spec is wrong, or asks for a processor or a tracker that is not here; names field and cause.
            Conflict: the idempotency key was used with another spec.
        """
        asked = parse_run_spec(raw)
        spec = asked.experiment
        check_trackers(asked.tracking)
        await asyncio.to_thread(compute_device_of, spec.device)  # a GPU's driver takes its time
        info = RunInfo(
            run=new_run_id(),
            name=spec.name,
            algorithm=spec.algorithm.name,
            status="pending",
            created_at=now(),
            num_rounds=total_rounds(spec),
            reason=WAITING if self.executor else None,
            tracking=asked.tracking,
            spec=spec,
        )
        async with self._lock:
            run_id = await self.services.repository.create(info, key, codec.digest_of(canonical(asked).encode()))
        self._training.wake()
        return await self.services.repository.info(run_id)

    async def pause(self, run_id: str) -> RunInfo:
        """Pause after the present round."""
        async with self._lock:
            info = await self.services.repository.info(run_id)
            if info.status == "pending" and not self._active(info):
                return await self._save(info.replace(status="paused", reason=None))
            if info.status in ("pending", "starting", "running", "pausing"):
                return await self._ask(info, "pause", "pausing")
            raise Conflict(f"run {info.run} is {info.status}: only a pending or running one can be paused")

    async def stop_run(self, run_id: str) -> RunInfo:
        """Stop now; what the present round did so far is dropped."""
        async with self._lock:
            info = await self.services.repository.info(run_id)
            if info.status in ("pending", "paused") and not self._active(info):
                return await self._save(info.replace(status="stopped", reason=None))
            if info.status in ("pending", *UNFINISHED):
                return await self._ask(info, "stop", "stopping")
            raise Conflict(f"run {info.run} is {info.status}: it has ended already")

    async def resume(self, run_id: str) -> RunInfo:
        """Go on from the last committed round."""
        async with self._lock:
            info = await self.services.repository.info(run_id)
            if info.status not in ("paused", "stopped", "failed"):
                raise Conflict(f"run {info.run} is {info.status}: only a paused, stopped or failed one can be resumed")
            return await self._pend(info)

    async def more(self, run_id: str, num_rounds: int) -> RunInfo:
        """Train so many rounds more."""
        async with self._lock:
            info = await self.services.repository.info(run_id)
            info = info.replace(num_rounds=info.num_rounds + num_rounds)
            if info.status in FINAL:
                return await self._pend(info)
            await self._save(info)
            if self.executor and self._active(info):
                self.executor.info = info
            return info

    async def delete(self, run_id: str) -> None:
        """Forget a run, at other tiers with their next heartbeats; its results folder stays.

        Raises:
            Conflict: it has not ended.
        """
        async with self._lock:
            info = await self.services.repository.info(run_id)
            if info.status not in FINAL or (self.executor and self.executor.info.run == info.run):
                raise Conflict(f"run {info.run} is {info.status}: only a run that has ended can be deleted")
            await self.services.repository.delete(info.run)

    async def _ask(self, info: RunInfo, wish: RequestedState, status: Status) -> RunInfo:
        """Ask the course of a run; without one (the cloud was just restarted) the document is what is asked."""
        info = await self._save(info.replace(status=status, reason=None))
        if self.executor and self._active(info):
            self.executor.info = info
            self.executor.request(wish)
        return info

    async def _pend(self, info: RunInfo) -> RunInfo:
        info = await self._save(info.replace(status="pending", reason=WAITING if self.executor else None))
        self._training.wake()
        return info

    async def _save(self, info: RunInfo) -> RunInfo:
        await self.services.repository.save(
            info, RunEvent("run.status", {"status": info.status, "reason": info.reason})
        )
        return info

    def _active(self, info: RunInfo) -> bool:
        """Whether a course works on the run; one that has halted or ended only tidies up."""
        course = self.executor
        return course is not None and course.info.run == info.run and course.info.status in ("pending", *UNFINISHED)

    # ---- what people look at

    async def info(self, run_id: str) -> RunInfo:
        """A run's document; while the store is away, of the run that trained what was last known of it.

        Raises:
            NotFound: there is no such run.
            StoreUnavailable: the store is away, and this run did not train.
        """
        try:
            return await self.services.repository.info(run_id)
        except StoreUnavailable as error:
            last = self.executor.info if self.executor else self._left
            if last is None or run_id not in (last.run, "latest"):
                raise
            return last.replace(reason=f"waiting: {error.detail}"[:2000])

    def seats_by_agent(self) -> dict[str, tuple[int, ...]]:
        """The seats of each agent that has some in the run that trains."""
        return self.executor.state.placement.seats_by_agent() if self.executor and self.executor.state else {}

    async def seats(self, run_id: str) -> tuple[SeatInfo, ...]:
        """The seats of a run.

        Raises:
            Conflict: the run has not started, so its numbers are not known yet.
        """
        archive, info = self.services.repository, await self.services.repository.info(run_id)
        experiment = await self._experiment_of(info)
        binding = await archive.binding(info.run)
        table = PlacementManager(
            experiment.population, self.services.registry, binding, info.spec.timeouts.reseat_after_s
        )
        kept = await archive.committed(info.run, experiment)
        return await self.services.worker.run(seat_infos, experiment, table, kept[0].retired if kept else {})

    async def model(self, run_id: str, name: str) -> TensorMap:
        """A model of the last committed state.

        Raises:
            NotFound: no model of that name; lists those there are.
        """
        info = await self.services.repository.info(run_id)
        experiment = await self._experiment_of(info)
        kept = await self.services.repository.committed(info.run, experiment)
        if kept is None:
            raise NotFound(f"run {info.run} has no committed round yet")
        ctx = experiment.ctx(
            phase=experiment.phase_of(max(kept[0].round_no, 1)).name, round_no=kept[0].round_no, n_clients=1
        )
        models = experiment.algorithm.cloud.models(ctx, kept[0].state)
        if name not in models:
            raise NotFound(f"run {info.run} has no model {name!r}; it has {', '.join(sorted(models)) or 'none'}")
        return models[name]

    async def _experiment_of(self, info: RunInfo) -> Experiment:
        if not info.resolved:
            raise Conflict(f"run {info.run} is {info.status}: it has not started yet")
        return await self.services.worker.run(self.services.experiments.of, info.spec)

    # ---- training

    async def _turn(self) -> None:
        """Train what is pending, after an interruption what was interrupted first."""
        try:
            if self._interrupted is not None:
                await self._recover(self._interrupted)
                self._interrupted = None
            while await self._train_next():
                pass
        except Exception as error:
            why = error.detail if isinstance(error, StrataError) else type(error).__name__
            self._interrupted = f"interrupted: {why}"[:2000]
            await self.services.evaluator.drop()
            raise

    async def _recover(self, why: str) -> None:
        """Whatever was not finished is taken up again, or ends as it was asked to."""
        await self.services.registry.load()
        await self.services.repository.load_deleted()
        async with self._lock:
            for info in await self.services.repository.infos():
                if info.status in ("pending", "paused"):
                    self.services.repository.hear(info.run, RunEvent("run.status", {"status": info.status}))
                if info.status in UNFINISHED:
                    after: dict[str, Status] = {"pausing": "paused", "stopping": "stopped"}
                    await self._save(info.replace(status=after.get(info.status, "pending"), reason=why))

    async def _train_next(self) -> bool:
        """Train the next pending run to its end; False if none is pending."""
        async with self._lock:
            info = await self._next_pending()
            self.executor = executor = RunExecutor(self.services, info, self._lock) if info else None
        if executor is None:
            return False
        try:
            await self._train(executor)
        finally:
            self.executor, self._left = None, executor.info
        return True

    async def _next_pending(self) -> RunInfo | None:
        waiting = [info for info in await self.services.repository.infos() if info.status == "pending"]
        return waiting[-1] if waiting else None

    async def _train(self, course: RunExecutor) -> None:
        """A course whose failure is a status with its reason.

        Raises:
            StoreUnavailable: the store is away, so that nothing can be noted.
        """
        try:
            await course.run()
        except StoreUnavailable:
            raise
        except StrataError as error:
            log.warning("run %s failed: %s", course.info.run, error.detail)
            await self._failed(course, error.detail)
        except Exception as error:
            log.exception("run %s failed", course.info.run)
            await self._failed(course, f"internal error: {type(error).__name__}: {error}")

    async def _failed(self, course: RunExecutor, reason: str) -> None:
        await self.services.evaluator.drop()
        await course.fail(reason)


def _pause_s(failures: int, took_s: float) -> float:
    return backoff(failures - 1) if failures else LOOK_S


def new_run_id() -> str:
    """An id of fixed length that sorts by time: `r20261121-134502-1f3a`."""
    return f"r{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def total_rounds(spec: ExperimentSpec) -> int:
    """Rounds of all phases of the spec's algorithm."""
    from shared.federation.registry import load_algorithm

    algorithm = load_algorithm(spec.algorithm.name)
    return sum(phase.num_rounds for phase in algorithm.phases(spec, algorithm.parse_params(spec.algorithm.params)))
