"""Requests of users: to create runs, and to pause, stop, resume, lengthen, delete and read them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cloud_server.runs.agents_of_run import notes_of_surplus
from cloud_server.runs.checkpoint import RunUnreadable
from cloud_server.runs.events import now
from cloud_server.runs.executor import RequestedState, RunExecutor
from cloud_server.runs.fair_order import WAITING
from cloud_server.runs.placement import PlacementManager
from cloud_server.runs.planner import Planner
from cloud_server.runs.plugin_checks import check_nodes
from cloud_server.runs.provenance import check_data, last_provenance, provenance_of, reconciled, reopened
from cloud_server.runs.quotas import Quotas
from cloud_server.runs.results_writer import seat_infos
from cloud_server.runs.room import with_room
from cloud_server.runs.run_queue import UNFINISHED, RunQueue
from cloud_server.runs.run_state import CloudServices
from cloud_server.runs.starts import committed_model, source_of
from shared.core.errors import Conflict
from shared.core.number_sets import NumberSet
from shared.core.records import canonical
from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.federation.registry import total_rounds
from shared.federation.scoring import check_stop
from shared.federation.spec_parser import parse_run_spec
from shared.results.run_list import newest_sequence
from shared.results.tracking.live import check_trackers
from shared.run_records.provenance import Provenance
from shared.run_records.run_order import next_sequence, remarks
from shared.run_records.runs import FINAL, RunInfo, RunPage, SeatInfo, Status
from shared.spec.ends import Stop
from shared.storage import redis_keys
from shared.storage.key_value import GuardFailed, StoreUnavailable
from shared.training.compute_device import compute_device_of
from shared.wire import codec

log = logging.getLogger(__name__)
RESUMABLE = ("paused", "stopped", "failed")
FINISH_S = 60.0
"""Seconds for which the deletion of a run that has just ended waits until nothing is done for it any more."""


class RunManager:
    """Takes requests of users; the queue executes the runs.

    Args:
        services: of the cloud.
        quotas: the limits of users.
        most: runs that train at a time.
    """

    def __init__(self, services: CloudServices, quotas: Quotas, most: int = 1) -> None:
        self.services, self.quotas = services, quotas
        self._lock = asyncio.Lock()
        self.queue = RunQueue(services, most, self._lock)
        self.planner = Planner(services)

    def start(self) -> None:
        """Begin to train pending runs."""
        self.queue.start()

    async def stop(self) -> None:
        """Stop; a run in the middle of a round resumes from its last checkpoint when the cloud is back."""
        await self.queue.stop()

    @property
    def training(self) -> list[RunInfo]:
        """The runs that train, in the order in which they began to."""
        return [executor.info for executor in self.queue.executors.values()]

    # ---- requests of users

    async def create(self, raw: dict[str, Any], key: str | None, owner: str | None = None) -> RunInfo:
        """Create a run of a spec; the same `key` of the same `owner` (None: the administrator) returns the same run.

        Raises:
            BadInput: the spec is wrong, or needs a device, a tracker or a model that is missing; names field and cause.
            Conflict: the idempotency key was used with another spec, or a node lacks a plug-in that the spec uses.
            TooMany, DiskQuota: a limit of the owner's is reached.
        """
        run_spec = parse_run_spec(raw)
        spec = run_spec.experiment
        check_nodes(self.services.registry, spec)
        check_trackers(run_spec.tracking)
        if spec.init is not None:
            await source_of(self.services, spec.init)
        await asyncio.to_thread(compute_device_of, spec.device)  # loading a GPU's driver takes long
        info = RunInfo(
            run="new",
            name=spec.name,
            algorithm=spec.algorithm.name,
            status="pending",
            created_at=now(),
            owner=owner,
            num_rounds=total_rounds(spec),
            reason=WAITING if self.queue.full else None,
            tracking=run_spec.tracking,
            stop=spec.stop,
            spec=spec,
        )
        if key is not None and owner is not None:
            key = f"{owner}\n{key}"  # two users may choose the same one; no header holds the end of a line
        await self.quotas.check_bytes(owner, key)
        in_folder = await asyncio.to_thread(newest_sequence, self.services.results.runs_dir)
        self.queue.is_shared = self.queue.is_shared or owner is not None
        async with self._lock:
            sequence = next_sequence(info.created_at, (in_folder, await self.services.repository.newest_sequence()))
            info = info.replace(sequence=sequence, notes=remarks(info.created_at, sequence))
            run_id = await self._create(info, key, codec.digest_of(canonical(run_spec).encode()))
        self.queue.wake()
        return await self.services.repository.info(run_id)

    async def _create(self, info: RunInfo, key: str | None, body_digest: str) -> str:
        """Store a new run under an id that no other run has, or had a short time ago."""
        await self.quotas.check_runs(info.owner, key)
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
                return await self.queue.save(info.replace(status="paused", reason=None))
            if info.status in ("pending", "starting", "running", "pausing"):
                return await self._request(info, "pause", "pausing")
            raise Conflict(f"run {info.run} is {info.status}: only a pending or running one can be paused")

    async def stop_run(self, run_id: str) -> RunInfo:
        """Stop now; the present round is discarded."""
        async with self._lock:
            info = await self.services.repository.info(run_id)
            if info.status in ("pending", "paused") and not self._active(info):
                return await self.queue.save(info.replace(status="stopped", reason=None))
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
        await self._check_bytes(info)
        present = await self._present_provenance(info)
        async with self._lock:
            info = await self.services.repository.info(info.run)
            if info.status not in RESUMABLE:
                raise Conflict(f"run {info.run} is {info.status}: it was resumed already")
            return await self._set_pending(info, present, accept_changes)

    async def add_rounds(
        self, run_id: str, num_rounds: int, accept_changes: bool = False, stop: Stop | None = None
    ) -> RunInfo:
        """Add rounds to the end of a run, with `stop` in place of its own; one that has ended is resumed."""
        info = await self.services.repository.info(run_id)
        await self._check_bytes(info)
        present = await self._present_provenance(info) if info.status in FINAL else None
        async with self._lock:
            info = await self.services.repository.info(info.run)
            check_stop(stop, [metric.label for metric in info.metrics], info.spec.validation)
            info = info.with_more_rounds(num_rounds, stop)
            if info.status in FINAL:
                return await self._set_pending(info, present, accept_changes)
            await self.queue.save(info)
            if (executor := self._active(info)) is not None:
                executor.info = info
            return info

    async def raise_max_devices(self, run_id: str, n: int) -> RunInfo:
        """Make room for more devices in a run that goes on, from its next round on; see `with_room`."""
        async with self._lock:
            info, event = await with_room(self.services, await self.services.repository.info(run_id), n)
            await self.queue.save(info, event)
            if (executor := self._active(info)) is not None:
                executor.info = info
            return info

    async def pin(self, run_id: str, pinned: bool) -> RunInfo:
        """Keep a run however long ago it ended, or no longer."""
        async with self._lock:
            info = (await self.services.repository.info(run_id)).replace(pinned=pinned)
            await self.services.repository.save(info)
            if (executor := self.queue.executors.get(info.run)) is not None:
                executor.info = executor.info.replace(pinned=pinned)
            return info

    async def delete(self, run_id: str, *, results: bool = False, unless_pinned: bool = False) -> None:
        """Delete a run; other tiers delete it at their next heartbeats. Its results folder stays, unless `results`.

        A run that has just ended is deleted once nothing is done for it any more.

        Raises:
            Conflict: it has not ended, that takes long, or it is pinned and `unless_pinned`.
        """
        try:
            async with asyncio.timeout(FINISH_S):
                while busy := await self._delete_unless_busy(run_id, unless_pinned):
                    await busy.finished.wait()
                if results:
                    await self.services.results.remove(run_id)
        except TimeoutError:
            raise Conflict(f"the cloud has not finished with run {run_id}: delete it later") from None

    async def _delete_unless_busy(self, run_id: str, unless_pinned: bool) -> RunExecutor | None:
        """Delete a run that has ended; while an executor still works for it, return that instead."""
        async with self._lock:
            try:
                info = await self.services.repository.info(run_id)
            except RunUnreadable:
                await self.services.repository.delete(run_id)
                return None
            if info.status not in FINAL:
                raise Conflict(f"run {info.run} is {info.status}: only a run that has ended can be deleted")
            if info.pinned and unless_pinned:
                raise Conflict(f"run {info.run} is pinned")
            if info.run in self.queue.executors:
                return self.queue.executors[info.run]
            await self.services.repository.delete(info.run)
            return None

    async def _request(self, info: RunInfo, requested: RequestedState, status: Status) -> RunInfo:
        """Request a state of the executor; without one (after a restart) the document holds the request."""
        info = await self.queue.save(info.replace(status=status, reason=None))
        if (executor := self._active(info)) is not None:
            executor.info = info
            executor.request(requested)
        return info

    async def _present_provenance(self, info: RunInfo) -> Provenance | None:
        """What a run would go on with now; None if it has no record to compare with, or its executor has its data."""
        if last_provenance(info) is None or info.run in self.queue.executors:
            return None
        experiment = await self.services.thread.run(reopened, self.services.experiments, info)
        return await self.services.thread.run(provenance_of, experiment)

    async def _check_bytes(self, info: RunInfo) -> None:
        """Check, before a run begins anew, the bytes of its owner; not while a lock is held that rounds wait for."""
        if info.status in FINAL:
            await self.quotas.check_bytes(info.owner)

    async def _set_pending(self, info: RunInfo, present: Provenance | None, accept_changes: bool) -> RunInfo:
        if info.status in FINAL:
            await self.quotas.check_runs(info.owner)
        info, events = reconciled(info, present, accept_changes) if present else (info, ())
        info = await self.queue.save(
            info.replace(status="pending", reason=WAITING if self.queue.full else None), *events
        )
        self.queue.wake()
        return info

    def _active(self, info: RunInfo) -> RunExecutor | None:
        """The executor of a run; None also once it has ended and its executor only finishes its results."""
        found = self.queue.executors.get(info.run)
        return found if found is not None and found.info.status in ("pending", *UNFINISHED) else None

    # ---- views

    async def info(self, run_id: str) -> RunInfo:
        """A run's document. While the store is unavailable, the last known one of a run that trains, or trained last.

        Raises:
            NotFound: there is no such run.
            StoreUnavailable: the store is unavailable, and this is another run.
        """
        try:
            return (await self._with_waits([await self.services.repository.info(run_id)]))[0]
        except StoreUnavailable as error:
            known = self.training or ([self.queue.last] if self.queue.last else [])
            last = next((info for info in reversed(known) if run_id in (info.run, "latest")), None)
            if last is None:
                raise
            return last.replace(reason=f"waiting: {error.detail}"[:2000])

    async def page(self, limit: int, owner: str | None = None) -> RunPage:
        """The newest runs, or the newest of one owner; and those that cannot be read."""
        page = await self.services.repository.page(limit if owner is None else None)
        runs = [info for info in page.runs if owner in (None, info.owner_name)]
        return page.replace(runs=await self._with_waits(runs[:limit]))

    async def _with_waits(self, infos: Sequence[RunInfo]) -> tuple[RunInfo, ...]:
        return tuple(map(self._with_wait, await self.queue.with_waits(infos)))

    def _with_wait(self, info: RunInfo) -> RunInfo:
        """A document; while the store refuses writes, which cannot be noted there, an unfinished run waits for it."""
        refusal = self.services.ownership.refusal
        if refusal is None or info.status not in ("pending", *UNFINISHED):
            return info
        return info.replace(reason=f"waiting: {refusal}"[:2000])

    def notes_of_surplus(self, n_devices: int, n_edges: int) -> tuple[str, ...]:
        """What is said of the runs that train with fewer devices or edges than are wanted."""
        return tuple(note for info in self.training for note in notes_of_surplus(info, n_devices, n_edges))

    def seats_by_agent(self) -> Mapping[str, NumberSet]:
        """The seats of each agent that has any, in the run that has trained longest with its help."""
        found: dict[str, NumberSet] = {}
        for executor in reversed(self.queue.executors.values()):
            found |= executor.state.placement.placement.agents if executor.state else {}
        return found

    async def edges_in_use(self) -> dict[str, str]:
        """The edge processes that serve runs which have begun and not ended, each with the first such run."""
        found: dict[str, str] = {}
        for info in await self.services.repository.infos():
            executor = self.queue.executors.get(info.run)
            if executor is not None and executor.placement is not None:
                edges = executor.placement.placement.edges
            elif info.resolved and info.status not in FINAL:
                edges = (await self.services.repository.placement(info.run)).edges
            else:
                continue
            found |= {edge: info.run for edge in edges.values() if edge not in found}
        return found

    def in_flight(self, run_id: str) -> dict[int, int]:
        """By home edge, the version of the model in its order in flight, of a run that does not wait for all edges."""
        executor = self.queue.executors.get(run_id)
        flights = executor.state.flights.all if executor and executor.state else ()
        return {flight.edge: flight.version for flight in flights}

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
        return await committed_model(self.services, await self.services.repository.info(run_id), name)

    async def _experiment_of(self, info: RunInfo) -> Experiment:
        if not info.resolved:
            raise Conflict(f"run {info.run} is {info.status}: it has not started yet")
        return await self.services.thread.run(reopened, self.services.experiments, info)


def new_run_id() -> str:
    """A new id; all have the same length, and the wall clock in them is for people: `r20261121-134502-1f3a`."""
    return f"r{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
