"""The queue of runs: one trains at a time, the others are pending. A restarted cloud resumes what it was doing."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cloud_server.runs.checkpoint import RunUnreadable
from cloud_server.runs.events import RunEvent, now
from cloud_server.runs.executor import RequestedState, RunExecutor
from cloud_server.runs.liveness_monitor import LivenessMonitor
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.provenance import (
    ProvenanceChanged,
    check_data,
    last_provenance,
    provenance_of,
    reconciled,
    reopened,
)
from cloud_server.runs.results_writer import seat_infos
from cloud_server.runs.run_state import CloudServices
from shared.core.errors import Conflict, NotFound, StrataError
from shared.core.number_sets import NumberSet
from shared.core.records import canonical
from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.federation.registry import total_rounds
from shared.federation.spec_parser import parse_run_spec
from shared.results.tracking.live import check_trackers
from shared.run_records.provenance import Provenance
from shared.run_records.runs import FINAL, RunInfo, RunPage, SeatInfo, Status
from shared.runtime.background import Repeating
from shared.service.retry import backoff
from shared.storage import redis_keys
from shared.storage.key_value import GuardFailed, StoreUnavailable
from shared.training.compute_device import compute_device_of
from shared.wire import codec

log = logging.getLogger(__name__)
RESUMABLE = ("paused", "stopped", "failed")
UNFINISHED = ("starting", "running", "pausing", "stopping")
WAITING = "waiting: another run trains"
LOOK_S = 5.0
"""Seconds between two looks for pending runs; a new one is found at once."""
RESULTS_S = 60.0
"""Seconds for which the deletion of a run that has just ended waits for its results."""


class RunManager:
    """Executes runs in the order of their creation, and takes requests of users."""

    def __init__(self, services: CloudServices) -> None:
        self.services = services
        self.executor: RunExecutor | None = None
        self._last: RunInfo | None = None
        self._monitor = LivenessMonitor(
            services.registry, services.repository, lambda: self.executor.info if self.executor else None
        )
        self._lock = asyncio.Lock()
        self._interrupted: str | None = "the cloud was restarted"
        self._training = Repeating(_pause_s, self._train_pending_runs, "runs wait")

    def start(self) -> None:
        """Begin: recover what an earlier cloud process left unfinished, then train pending runs."""
        self._training.start()
        self._monitor.start()

    async def stop(self) -> None:
        """Stop the background tasks.

        A run in the middle of a round resumes from its last checkpoint when the cloud is back.
        """
        await self._monitor.stop()
        await self._training.stop()
        await self.services.evaluator.drop()

    # ---- requests of users

    async def create(self, raw: dict[str, Any], key: str | None) -> RunInfo:
        """Create a run of a spec; the same `key` returns the same run.

        Raises:
            BadInput: the spec is wrong, or needs a compute device or a tracker that is missing; names field and cause.
            Conflict: the idempotency key was used with another spec.
        """
        run_spec = parse_run_spec(raw)
        spec = run_spec.experiment
        check_trackers(run_spec.tracking)
        await asyncio.to_thread(compute_device_of, spec.device)  # loading a GPU's driver takes long
        info = RunInfo(
            run="new",
            name=spec.name,
            algorithm=spec.algorithm.name,
            status="pending",
            created_at=now(),
            num_rounds=total_rounds(spec),
            reason=WAITING if self.executor else None,
            tracking=run_spec.tracking,
            spec=spec,
        )
        async with self._lock:
            run_id = await self._create(info, key, codec.digest_of(canonical(run_spec).encode()))
        self._training.wake()
        return await self.services.repository.info(run_id)

    async def _create(self, info: RunInfo, key: str | None, body_digest: str) -> str:
        """Store a new run under an id that no other run has, or had a short time ago."""
        while True:
            info = info.replace(run=new_run_id())
            try:
                return await self.services.repository.create(info, key, body_digest)
            except GuardFailed as error:
                if error.key not in (redis_keys.cloud_run(info.run), redis_keys.cloud_deleted(info.run)):
                    raise

    async def pause(self, run_id: str) -> RunInfo:
        """Pause after the present round."""
        async with self._lock:
            info = await self.services.repository.info(run_id)
            if info.status == "pending" and not self._active(info):
                return await self._save(info.replace(status="paused", reason=None))
            if info.status in ("pending", "starting", "running", "pausing"):
                return await self._request(info, "pause", "pausing")
            raise Conflict(f"run {info.run} is {info.status}: only a pending or running one can be paused")

    async def stop_run(self, run_id: str) -> RunInfo:
        """Stop now; the present round is discarded."""
        async with self._lock:
            info = await self.services.repository.info(run_id)
            if info.status in ("pending", "paused") and not self._active(info):
                return await self._save(info.replace(status="stopped", reason=None))
            if info.status in ("pending", *UNFINISHED):
                return await self._request(info, "stop", "stopping")
            raise Conflict(f"run {info.run} is {info.status}: it has ended already")

    async def resume(self, run_id: str, accept_changes: bool = False) -> RunInfo:
        """Continue a paused, stopped or failed run from its last checkpoint, as its user requests.

        Args:
            run_id: the run.
            accept_changes: go on with other data, code or packages than the run began with, and record them.

        Raises:
            ProvenanceChanged: they differ, and the change is not accepted.
        """
        info = await self.services.repository.info(run_id)
        if info.status not in RESUMABLE:
            raise Conflict(f"run {info.run} is {info.status}: only a paused, stopped or failed one can be resumed")
        present = await self._present_provenance(info)
        async with self._lock:
            info = await self.services.repository.info(info.run)
            if info.status not in RESUMABLE:
                raise Conflict(f"run {info.run} is {info.status}: it was resumed already")
            return await self._set_pending(info, present, accept_changes)

    async def add_rounds(self, run_id: str, num_rounds: int, accept_changes: bool = False) -> RunInfo:
        """Add rounds to the end of a run; one that has ended is resumed (see `resume`)."""
        info = await self.services.repository.info(run_id)
        present = await self._present_provenance(info) if info.status in FINAL else None
        async with self._lock:
            info = await self.services.repository.info(info.run)
            info = info.with_more_rounds(num_rounds)
            if info.status in FINAL:
                return await self._set_pending(info, present, accept_changes)
            await self._save(info)
            if self.executor and self._active(info):
                self.executor.info = info
            return info

    async def delete(self, run_id: str) -> None:
        """Delete a run; other tiers delete it at their next heartbeats. Its results folder stays.

        A run that has just ended is deleted once its results are complete.

        Raises:
            Conflict: it has not ended, or writing its results takes long.
        """
        try:
            async with asyncio.timeout(RESULTS_S):
                while busy := await self._delete_unless_busy(run_id):
                    await busy.finished.wait()
        except TimeoutError:
            raise Conflict(f"the results of run {run_id} are still being written: delete it later") from None

    async def _delete_unless_busy(self, run_id: str) -> RunExecutor | None:
        """Delete a run that has ended; while an executor still works for it, return that instead."""
        async with self._lock:
            try:
                info = await self.services.repository.info(run_id)
            except RunUnreadable:
                await self.services.repository.delete(run_id)
                return None
            if info.status not in FINAL:
                raise Conflict(f"run {info.run} is {info.status}: only a run that has ended can be deleted")
            if self.executor and self.executor.info.run == info.run:
                return self.executor
            await self.services.repository.delete(info.run)
            return None

    async def _request(self, info: RunInfo, requested: RequestedState, status: Status) -> RunInfo:
        """Request a state of the executor; without one (after a restart) the document holds the request."""
        info = await self._save(info.replace(status=status, reason=None))
        if self.executor and self._active(info):
            self.executor.info = info
            self.executor.request(requested)
        return info

    async def _present_provenance(self, info: RunInfo) -> Provenance | None:
        """What a run would go on with now; None if it has no record to compare with, or its executor has its data."""
        if last_provenance(info) is None or (self.executor and self.executor.info.run == info.run):
            return None
        experiment = await self.services.thread.run(reopened, self.services.experiments, info)
        return await self.services.thread.run(provenance_of, experiment)

    async def _set_pending(self, info: RunInfo, present: Provenance | None, accept_changes: bool) -> RunInfo:
        info, events = reconciled(info, present, accept_changes) if present else (info, ())
        info = await self._save(info.replace(status="pending", reason=WAITING if self.executor else None), *events)
        self._training.wake()
        return info

    async def _save(self, info: RunInfo, *events: RunEvent) -> RunInfo:
        await self.services.repository.save(
            info, *events, RunEvent("run.status", {"status": info.status, "reason": info.reason})
        )
        return info

    def _active(self, info: RunInfo) -> bool:
        """Whether the run is being executed; after it has ended, its executor only finishes its results."""
        current = self.executor.info if self.executor else None
        return current is not None and current.run == info.run and current.status in ("pending", *UNFINISHED)

    # ---- views

    async def info(self, run_id: str) -> RunInfo:
        """A run's document. While the store is unavailable, the last known one of the run that trained last.

        Raises:
            NotFound: there is no such run.
            StoreUnavailable: the store is unavailable, and this is not the run that trained last.
        """
        try:
            return self._with_wait(await self.services.repository.info(run_id))
        except StoreUnavailable as error:
            last = self.executor.info if self.executor else self._last
            if last is None or run_id not in (last.run, "latest"):
                raise
            return last.replace(reason=f"waiting: {error.detail}"[:2000])

    async def page(self, limit: int) -> RunPage:
        """The newest runs, and those that cannot be read."""
        page = await self.services.repository.page(limit)
        return page.replace(runs=tuple(map(self._with_wait, page.runs)))

    def _with_wait(self, info: RunInfo) -> RunInfo:
        """A document; while the store refuses writes, which cannot be noted there, an unfinished run waits for it."""
        refusal = self.services.ownership.refusal
        if refusal is None or info.status not in ("pending", *UNFINISHED):
            return info
        return info.replace(reason=f"waiting: {refusal}"[:2000])

    def seats_by_agent(self) -> Mapping[str, NumberSet]:
        """The seats of each agent that has any in the run that trains."""
        return self.executor.state.placement.placement.agents if self.executor and self.executor.state else {}

    async def seats(self, run_id: str, numbers: NumberSet) -> tuple[SeatInfo, ...]:
        """Those of these seats that a run has.

        Raises:
            Conflict: the run has not started, so its number of seats is not known yet, or its data is here no more.
        """
        repository, registry = self.services.repository, self.services.registry
        info = await repository.info(run_id)
        experiment = await self._experiment_of(info)
        check_data(info, experiment)
        stored = await repository.placement(info.run)
        placement = PlacementManager(experiment.population, registry, stored, info.spec.timeouts.reseat_after_s)
        found = await repository.checkpoint(info.run, experiment)
        there, retired = numbers & experiment.population.seats.numbers, found[0].retired if found else {}
        return await self.services.thread.run(seat_infos, info.run, experiment, placement, retired, there)

    async def model(self, run_id: str, name: str) -> TensorMap:
        """A model of the last checkpoint.

        Raises:
            NotFound: no model of that name; lists the names.
        """
        info = await self.services.repository.info(run_id)
        experiment = await self._experiment_of(info)
        found = await self.services.repository.checkpoint(info.run, experiment)
        if found is None:
            raise NotFound(f"run {info.run} has no committed round yet")
        checkpoint, _ = found
        phase = experiment.phase_of(max(checkpoint.round_no, 1)).name
        ctx = experiment.ctx(phase=phase, round_no=checkpoint.round_no, n_clients=1)
        models = experiment.algorithm.cloud.models(ctx, checkpoint.state)
        if name not in models:
            raise NotFound(f"run {info.run} has no model {name!r}; it has {', '.join(sorted(models)) or 'none'}")
        return models[name]

    async def _experiment_of(self, info: RunInfo) -> Experiment:
        if not info.resolved:
            raise Conflict(f"run {info.run} is {info.status}: it has not started yet")
        return await self.services.thread.run(reopened, self.services.experiments, info)

    # ---- training

    async def _train_pending_runs(self) -> None:
        """Train all pending runs while this cloud owns the data; after an interruption, recover first."""
        ownership = self.services.ownership
        await ownership.held.wait()
        try:
            await ownership.while_held(self._recover_and_train())
        except Exception as error:
            why = error.detail if isinstance(error, StrataError) else type(error).__name__
            self._interrupted = f"interrupted: {why}"[:2000]
            await self.services.evaluator.drop()
            raise

    async def _recover_and_train(self) -> None:
        if self._interrupted is not None:
            await self._recover_after_restart(self._interrupted)
            self._interrupted = None
        while await self._train_next():
            pass

    async def _recover_after_restart(self, why: str) -> None:
        """Make unfinished runs pending again, or end them if a pause or stop was requested."""
        await self.services.registry.load()
        await self.services.repository.load_deleted()
        async with self._lock:
            for info in await self.services.repository.infos():
                if info.status in ("pending", "paused"):
                    self.services.repository.on_event(info.run, RunEvent("run.status", {"status": info.status}))
                if info.status in UNFINISHED:
                    after: dict[str, Status] = {"pausing": "paused", "stopping": "stopped"}
                    await self._save(info.replace(status=after.get(info.status, "pending"), reason=why))

    async def _train_next(self) -> bool:
        """Train the next pending run to its end; False if none is pending."""
        async with self._lock:
            info = await self._next_pending()
            self.executor = executor = (
                RunExecutor(self.services, info, self._lock, self._monitor.check) if info else None
            )
        if executor is None:
            return False
        try:
            await self._train(executor)
        finally:
            self.executor, self._last = None, executor.info
            executor.finished.set()
        return True

    async def _next_pending(self) -> RunInfo | None:
        waiting = [info for info in await self.services.repository.infos() if info.status == "pending"]
        return waiting[-1] if waiting else None

    async def _train(self, executor: RunExecutor) -> None:
        """Execute a run; if it fails, its status is `failed` with the reason.

        Raises:
            StoreUnavailable: the store is unavailable, so that no status can be stored.
        """
        try:
            await executor.run()
        except StoreUnavailable:
            raise
        except ProvenanceChanged as error:
            log.warning("run %s pauses: %s", executor.info.run, error.detail)
            await executor.end("paused", error.detail)
        except StrataError as error:
            log.warning("run %s failed: %s", executor.info.run, error.detail)
            await self._failed(executor, error.detail)
        except Exception as error:
            log.exception("run %s failed", executor.info.run)
            await self._failed(executor, f"internal error: {type(error).__name__}: {error}")

    async def _failed(self, executor: RunExecutor, reason: str) -> None:
        await self.services.evaluator.drop()
        await executor.end("failed", reason)


def _pause_s(failures: int, took_s: float) -> float:
    return backoff(failures - 1) if failures else LOOK_S


def new_run_id() -> str:
    """A new id; all have the same length and sort by time: `r20261121-134502-1f3a`."""
    return f"r{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
