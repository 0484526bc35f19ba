"""What an edge does with an order of the cloud: find the seating and the state, run the round, remember, answer."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_server.metrics import EdgeMetrics
from edge_server.roster import Roster
from edge_server.rounds.agent_client import AgentClient
from edge_server.rounds.late_updates import LateUpdateBuffer, packed, unpacked
from edge_server.rounds.round import EdgeRound
from edge_server.rounds.twins import Twins
from edge_server.state_store import MOST_SIGHTINGS, T, log, placement_digest
from shared.core.errors import Conflict, NotFound, NotReady, PlacementUnknown
from shared.core.records import copy_tensors
from shared.federation.experiment import Experiment, ExperimentCache
from shared.federation.messages import EdgePlacement, RoundAnswer, RoundOrder
from shared.runtime.logs import log_context, log_event
from shared.runtime.worker import Worker
from shared.service.bodies import EncodedAnswer, Received
from shared.service.client import Caller
from shared.service.retry import STORE_S, retry
from shared.simulation.digital_twin import Twin, TwinList
from shared.spec.experiment import ExperimentSpec
from shared.storage import redis_keys
from shared.storage.blobs import Blobs
from shared.storage.key_value import Batch, Store, StoreUnavailable
from shared.storage.states import StateStore, Version
from shared.wire import codec

ADDRESS_S = 10.0


@dataclass
class RoundHandler:
    """The rounds of this edge. `states` are those of its own worker's seats."""

    edge_id: str
    store: Store
    blobs: Blobs
    states: StateStore
    experiments: ExperimentCache
    worker: Worker
    caller: Caller
    roster: Roster
    own_url: str
    ttl_s: float
    metrics: EdgeMetrics
    committing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def known_as(self, url: str) -> None:
        """The address under which agents reach this edge, told by the cloud."""
        self.own_url = url

    async def keep_placement(self, seating: EdgePlacement, loads: Mapping[str, int]) -> str:
        """Remember who sits where, in the place of what was known of that home; the digest by which rounds name it."""
        digest = placement_digest(seating)
        data = json.dumps({"seating": seating.model_dump(mode="json"), "loads": dict(loads)}).encode()

        async def keep() -> None:
            known = await self.store.scan(redis_keys.edge_seatings(self.edge_id, seating.run_id))
            old = [key for key, value in known.items() if json.loads(value)["seating"]["edge"] == seating.edge]
            batch = Batch().delete(*old).put(redis_keys.edge_seating(self.edge_id, seating.run_id, digest), data)
            await self.store.commit(batch)

        await self._stored(keep)
        return digest

    async def _stored(self, work: Callable[[], Awaitable[T]]) -> T:
        """Reads and writes that may be done twice, tried again while Redis is away.

        Raises:
            DeadlineExceeded: it was away for too long.
        """
        who = f"the Redis of edge {self.edge_id}"
        return await retry(lambda left: work(), limit_s=STORE_S, who=who, over=(StoreUnavailable,))

    async def round(self, received: Received, spec: ExperimentSpec, stop: threading.Event) -> EncodedAnswer:
        """Run one round.

        Raises:
            SeatingUnknown: this edge has not got the seating that the order names.
            Conflict: the population derived here is not the cloud's.
        """
        with self.metrics.one_round():
            return await self._round(received, spec, stop)

    async def _round(self, received: Received, spec: ExperimentSpec, stop: threading.Event) -> EncodedAnswer:
        experiment, order, n_bytes = await self.worker.run(self._decode, received, spec)
        with log_context(run=order.run_id, round=order.round_no, home=order.edge):
            log_event("order.taken", kind=order.kind, bytes=n_bytes)
            return await self._ordered(experiment, order, n_bytes, stop)

    async def _ordered(
        self, experiment: Experiment, order: RoundOrder[Any], n_bytes: int, stop: threading.Event
    ) -> EncodedAnswer:
        if experiment.population.digest != order.population:
            raise Conflict("the population derived here is not the cloud's: other data set or version?")
        await self._address()
        seating, loads = await self._placement(order)
        state, stock = await self._state(experiment, order)
        twins = Twins(await self._twins(order))
        devices = AgentClient(
            experiment,
            order,
            seating,
            loads,
            self.caller,
            self.roster,
            self.worker,
            stop,
            self.states,
            self.own_url,
            self.ttl_s,
        )
        fresh = state is None and order.base is not None
        work = EdgeRound(experiment, order, devices, self.worker, state, stock, twins, n_bytes, fresh)
        answer = await work.run()
        self.metrics.noted(work.log)
        await self._commit(order, lambda: packed(experiment, work.state, stock), twins, answer)
        body = await self.worker.run(codec.encode, answer)
        log_event("update.sent", n_updates=answer.n_updates, bytes=body.n_bytes, simulated_s=answer.simulated_s)
        return EncodedAnswer(body, work.log.testing_s, work.log.socket_bytes)

    async def _address(self) -> None:
        """Agents must know where to send heartbeats: an edge that has just begun is told its address by the cloud.

        Raises:
            NotReady: it was not, in time.
        """
        ends = time.monotonic() + ADDRESS_S
        while not self.own_url:
            if time.monotonic() > ends:
                raise NotReady(f"edge {self.edge_id} has not been able to register with the cloud for {ADDRESS_S:g} s")
            await asyncio.sleep(0.05)

    def _decode(self, received: Received, spec: ExperimentSpec) -> tuple[Experiment, RoundOrder[Any], int]:
        """The order in torch's own memory, and its size; the body's memory is free from here on."""
        body, header = received.take()
        experiment = self.experiments.of(spec)
        order: RoundOrder[Any] = copy_tensors(
            codec.decode(
                experiment.wire_types.round_order,
                body,
                header=header,
                model=experiment.shapes,
                n_seats=len(experiment.population.seats),
            )
        )
        return experiment, order, len(body)

    async def _placement(self, order: RoundOrder[Any]) -> tuple[EdgePlacement, dict[str, int]]:
        data = await self._stored(
            lambda: self.store.get(redis_keys.edge_seating(self.edge_id, order.run_id, order.placement))
        )
        if data is None:
            raise PlacementUnknown(
                f"edge {self.edge_id} does not know placement {order.placement[:12]} of {order.run_id}"
            )
        raw = json.loads(data)
        return EdgePlacement.model_validate(raw["seating"]), raw["loads"]

    async def _state(self, experiment: Experiment, order: RoundOrder[Any]) -> tuple[Any, LateUpdateBuffer]:
        """What was kept of the home: the algorithm's state (None: nothing), and late updates."""
        if order.base is None:
            return None, LateUpdateBuffer()
        key = self._state_key(order, order.base)
        digest = await self._stored(lambda: self.store.get(key))
        if digest is None:
            log.warning("run %s: the state of home %s is not here, it begins anew", order.run_id, order.edge)
            return None, LateUpdateBuffer()
        data = await self.worker.run(self.blobs.open, digest.decode())
        return await self.worker.run(unpacked, experiment, data)

    async def _twins(self, order: RoundOrder[Any]) -> dict[int, Twin]:
        """The twins as they were after the round from which this one goes on."""
        if order.base is None:
            return {}
        key = self._twins_key(order, order.base)
        data = await self._stored(lambda: self.store.get(key))
        return {} if data is None else TwinList.model_validate_json(data).by_seat()

    async def twins(self, run_id: str) -> TwinList:
        """The twins of a run after the newest committed round, of all homes that this edge served.

        Of very many, less of their history: the answer stays small.

        Raises:
            NotFound: none are kept of that run here.
        """
        known = await self.store.scan(redis_keys.edge_all_twins(self.edge_id, run_id))
        newest = {key.rpartition(":")[0]: data for key, data in sorted(known.items())}
        if not newest:
            raise NotFound(f"edge {self.edge_id} keeps no twins of run {run_id}")
        found = [twin for data in newest.values() for twin in TwinList.model_validate_json(data).twins]
        most = max(MOST_SIGHTINGS // max(len(found), 1), 1)
        shown = [twin.replace(history=twin.history[-most:]) for twin in sorted(found, key=lambda twin: twin.seat)]
        return TwinList(twins=tuple(shown))

    async def _commit(
        self, order: RoundOrder[Any], pack: Callable[[], codec.Body], twins: Twins, answer: RoundAnswer[Any]
    ) -> None:
        """The state first as a file, then its reference, and twins; what is older than where this round began goes."""
        if order.kind != "train" or answer.base is None:
            return
        async with self.committing:
            digest = await self.worker.run(lambda: self.blobs.put(pack().parts))
            base, before = answer.base, order.base or answer.base
            kept = {key(order, version) for version in (before, base) for key in (self._state_key, self._twins_key)}
            told = TwinList(twins=tuple(twin for _, twin in sorted(twins.known.items())))

            async def commit() -> None:
                old = await self.store.keys(redis_keys.edge_states(self.edge_id, order.run_id, order.edge))
                batch = Batch().put(self._state_key(order, base), digest.encode())
                if told.twins:
                    old += await self.store.keys(redis_keys.edge_twins_of(self.edge_id, order.run_id, order.edge))
                    batch = batch.put(self._twins_key(order, base), told.model_dump_json().encode())
                await self.store.commit(batch.delete(*(key for key in old if key not in kept)))
                await self._collect()

            await self._stored(commit)

    async def _collect(self) -> None:
        """Remove the files that no state refers to."""
        of_runs = await self.store.scan(redis_keys.edge_runs(self.edge_id))
        states = {value.decode() for key, value in of_runs.items() if ":state:" in key}
        await self.worker.run(self.blobs.collect, states)

    def _state_key(self, order: RoundOrder[Any], version: Version) -> str:
        return redis_keys.edge_state(self.edge_id, order.run_id, order.edge, version)

    def _twins_key(self, order: RoundOrder[Any], version: Version) -> str:
        return redis_keys.edge_twins(self.edge_id, order.run_id, order.edge, version)

    async def runs(self) -> set[str]:
        """The runs of which something is kept here."""
        known = await self.store.keys(redis_keys.edge_runs(self.edge_id))
        return {redis_keys.run_at_edge(self.edge_id, key) for key in known} | set(
            await self.worker.run(self.states.runs)
        )

    async def forget(self, run_id: str) -> None:
        """Drop everything of a run that was deleted."""
        log_event("run.deleted", run=run_id)
        async with self.committing:
            for prefix in redis_keys.all_of_run_at_edge(self.edge_id, run_id):
                await self.store.delete_prefix(prefix)
            await self.worker.run(self.states.drop_run, run_id)
            await self._collect()
