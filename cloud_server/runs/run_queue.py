"""The queue of runs: pending ones train in turns of their owners (`fair_order`), a number of them at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from cloud_server.runs.events import RunEvent
from cloud_server.runs.executor import RunExecutor
from cloud_server.runs.fair_order import Turns, fair_order, wait_reasons
from cloud_server.runs.liveness_monitor import LivenessMonitor
from cloud_server.runs.provenance import ProvenanceChanged
from cloud_server.runs.run_state import CloudServices
from shared.core.errors import StrataError
from shared.core.user_code import described
from shared.run_records.runs import RunInfo, Status
from shared.runtime.background import Repeating
from shared.service.retry import backoff
from shared.storage.key_value import StoreUnavailable

log = logging.getLogger(__name__)
UNFINISHED = ("starting", "running", "pausing", "stopping")
LOOK_S = 5.0
"""Seconds between two looks for pending runs; a new one is found at once."""


class RunQueue:
    """Trains pending runs. A restarted cloud goes on with what it was doing.

    Args:
        services: of the cloud.
        most: runs that train at a time.
        lock: held while a run's document changes.

    Attributes:
        executors: of the runs that train, and of those that have ended and still finish their results, by run.
        last: the run that has ended last.
        is_shared: whether there are runs of other owners than the administrator.
    """

    def __init__(self, services: CloudServices, most: int, lock: asyncio.Lock) -> None:
        self.services, self.most, self.lock = services, most, lock
        self.executors: dict[str, RunExecutor] = {}
        self.last: RunInfo | None = None
        self.is_shared = False
        self._turns, self._stopped = Turns(services.repository.store), set[str]()
        self._monitor = LivenessMonitor(
            services.registry,
            services.repository,
            lambda: [each.info for each in self.executors.values()],
            services.store_watch,
        )
        self._interrupted: str | None = "the cloud was restarted"
        self._news = asyncio.Event()
        self._training = Repeating(_pause_s, self._train_while_owned, "runs wait")

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

    def wake(self) -> None:
        """Look for pending runs at once."""
        self._news.set()
        self._training.wake()

    @property
    def full(self) -> bool:
        """Whether a pending run has to wait for another to end."""
        return len(self.executors) >= self.most

    # ---- training

    async def _train_while_owned(self) -> None:
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
        training: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._news.clear()
                while len(training) < self.most and (executor := await self._next()) is not None:
                    training.add(asyncio.create_task(self._train_to_end(executor)))
                if not training:
                    return
                await self._wait(training)
                ended = {task for task in training if task.done()}
                training -= ended
                for task in ended:
                    task.result()
        finally:  # an error of one run that no document can hold interrupts all
            for task in training:
                task.cancel()
            await asyncio.gather(*training, return_exceptions=True)

    async def _wait(self, training: set[asyncio.Task[None]]) -> None:
        """Wait until a run has ended, or there may be another one."""
        news = asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait({*training, news}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    async def _recover_after_restart(self, why: str) -> None:
        """Make unfinished runs pending again, or end them if a pause or stop was requested."""
        services = self.services
        await services.registry.load()
        await services.repository.load_deleted()
        await self._turns.load()
        async with self.lock:
            for info in await services.repository.infos():
                self.is_shared = self.is_shared or info.owner is not None
                if info.status in ("pending", "paused"):
                    services.repository.on_event(info.run, RunEvent("run.status", {"status": info.status}))
                if info.status in UNFINISHED:
                    after: dict[str, Status] = {"pausing": "paused", "stopping": "stopped"}
                    changed = info.replace(status=after.get(info.status, "pending"), reason=why)
                    await self.save(changed)
                    if changed.status == "pending":
                        self._stopped.add(info.run)
                        services.shares.keep(info.run, (await services.repository.placement(info.run)).agents)

    async def save(self, info: RunInfo, *events: RunEvent) -> RunInfo:
        """Store a run's document, with an event of its status."""
        status = RunEvent("run.status", {"status": info.status, "reason": info.reason})
        await self.services.repository.save(info, *events, status)
        return info

    async def _next(self) -> RunExecutor | None:
        """An executor of the next pending run; None if none is pending."""
        async with self.lock:
            chosen = next(self._order(await self._waiting()), None)
            if chosen is None:
                return None
            self._stopped.discard(chosen.run)
            await self._turns.taken(chosen.owner)
            executor = RunExecutor(self.services, chosen, self.lock, self._monitor.check)
            self.executors[executor.info.run] = executor
            return executor

    async def _waiting(self) -> list[RunInfo]:
        infos = await self.services.repository.infos()
        return [info for info in infos if info.status == "pending" and info.run not in self.executors]

    def _order(self, waiting: Sequence[RunInfo]) -> Iterator[RunInfo]:
        training = [executor.info for executor in self.executors.values()]
        return fair_order(waiting, training, self._turns.last, self._stopped)

    async def with_waits(self, infos: Sequence[RunInfo]) -> tuple[RunInfo, ...]:
        """Documents; those of pending runs say for whose runs they wait, where runs have several owners."""
        if not (self.full and self.is_shared and any(info.status == "pending" for info in infos)):
            return tuple(infos)
        order, training = self._order(await self._waiting()), [each.info for each in self.executors.values()]
        reasons = dict(wait_reasons(order, training, {info.run for info in infos}))
        return tuple(info.replace(reason=reasons[info.run]) if info.run in reasons else info for info in infos)

    async def _train_to_end(self, executor: RunExecutor) -> None:
        try:
            await self._train(executor)
        finally:
            run_id = executor.info.run
            del self.executors[run_id]
            self.last, executor.state = executor.info, None  # the model: executors are in cycles, which are freed late
            self.services.shares.end_run(run_id)
            self.services.edges.end_run(run_id)
            executor.finished.set()

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
            await self._failed(executor, f"internal error: {described(error)}")

    async def _failed(self, executor: RunExecutor, reason: str) -> None:
        await self.services.evaluator.drop(executor.info.run)
        await executor.end("failed", reason)


def _pause_s(failures: int, took_s: float) -> float:
    return backoff(failures - 1) if failures else LOOK_S
