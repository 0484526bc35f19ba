"""What an edge keeps of its runs: placements, edge states and digital twins in Redis and files, and device states."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edge_server.rounds.edge_checkpoint import EdgeMemory, as_decoded, decode_checkpoint, encode_checkpoint
from edge_server.rounds.placements import KeptPlacement
from edge_server.rounds.twins import Twins
from shared.core.errors import NotFound, PlacementUnknown
from shared.core.records import canonical
from shared.federation.experiment import Experiment
from shared.federation.messages import RoundOrder
from shared.federation.placements import EdgePlacement
from shared.runtime.compute_thread import ComputeThread
from shared.runtime.logs import log_event
from shared.service.retry import STORE_S, retry
from shared.simulation.digital_twin import Twin, TwinList
from shared.storage import redis_keys
from shared.storage.blobs import Blobs
from shared.storage.key_value import Batch, Store, StoreUnavailable
from shared.storage.states import StateStore, Version
from shared.wire import codec

log = logging.getLogger(__name__)
T = TypeVar("T")
NEWEST = 4
"""Runs and edges whose newest checkpoint is kept in memory; those of others are read from their files."""
MAX_OBSERVATIONS = 2000
"""Bounds the sightings in one answer with the twins of a run: with many twins, each shows less of its history."""


def placement_digest(placement: EdgePlacement) -> str:
    """The digest by which the order of a round names its placement."""
    return codec.digest_of(canonical(placement).encode())


@dataclass
class EdgeStateStore:
    """The runs of one edge, in Redis and in files.

    Attributes:
        edge_name: the edge, whose name is part of its Redis keys.
        store: Redis; holds placements, twins and the digests of edge states.
        blobs: the files of edge states.
        seat_states: the client states of the edge's own worker.
        thread: the thread that reads and writes files.
    """

    edge_name: str
    store: Store
    blobs: Blobs
    seat_states: StateStore
    thread: ComputeThread
    _committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _decoded: tuple[bytes, KeptPlacement] | None = None
    _newest: dict[tuple[str, int], tuple[str, EdgeMemory]] = field(default_factory=dict)

    # ---- placements

    async def keep_placement(self, kept: KeptPlacement) -> str:
        """Replaces the placement of an edge of a run; returns the digest by which orders name it."""
        placement = kept.placement
        run_id, digest = placement.run_id, placement_digest(placement)
        data = kept.model_dump_json().encode()

        async def keep() -> None:
            known = await self.store.scan(redis_keys.edge_placements(self.edge_name, run_id))
            old = [key for key, value in known.items() if json.loads(value)["placement"]["edge"] == placement.edge]
            batch = Batch().delete(*old).put(redis_keys.edge_placement(self.edge_name, run_id, digest), data)
            await self.store.commit(batch)

        await self._retried(keep)
        return digest

    async def placement(self, order: RoundOrder[Any]) -> KeptPlacement:
        """The placement that an order names.

        Raises:
            PlacementUnknown: this edge does not hold it.
        """
        data = await self._get(redis_keys.edge_placement(self.edge_name, order.run_id, order.placement))
        if data is None:
            raise PlacementUnknown(
                f"edge {self.edge_name} was not told which agents host its devices in this round of {order.run_id}"
            )
        if self._decoded is None or self._decoded[0] != data:  # of many seats, decoding takes longer than a round
            self._decoded = data, KeptPlacement.model_validate_json(data)
        return self._decoded[1]

    # ---- states and twins

    async def memory(self, experiment: Experiment, order: RoundOrder[Any]) -> EdgeMemory:
        """What the edge remembered after the round from which the order continues.

        It is empty before the first round, and where nothing is kept here. The checkpoint that was written last is
        handed out once from this process' memory, as its round changes it; otherwise it is read from its file.
        """
        newest, memory = self._newest.pop((order.run_id, order.edge), ("", EdgeMemory()))
        if order.base is None:
            return EdgeMemory()
        found = await self._get(self._state_key(order, order.base))
        if found is None:
            log.warning("run %s: the state of edge %s is not kept here, it starts anew", order.run_id, order.edge)
            return EdgeMemory()
        digest = found.decode()
        if digest == newest:
            return memory
        return await self.thread.run(lambda: decode_checkpoint(experiment, self.blobs.open(digest)))

    async def twins_before(self, order: RoundOrder[Any]) -> dict[int, Twin]:
        """The twins by seat after the round from which the order continues."""
        data = await self._get(self._twins_key(order, order.base)) if order.base is not None else None
        return {} if data is None else TwinList.model_validate_json(data).by_seat()

    async def twins(self, run_id: str) -> TwinList:
        """The twins of a run after the newest committed round, of every edge of the run that was served here.

        With many twins, each shows only the end of its history: see `MAX_OBSERVATIONS`.

        Raises:
            NotFound: no twins of that run are kept here.
        """
        known = await self.store.scan(redis_keys.edge_all_twins(self.edge_name, run_id))
        newest = {key.rpartition(":")[0]: data for key, data in sorted(known.items())}
        if not newest:
            raise NotFound(f"edge {self.edge_name} keeps no twins of run {run_id}")
        found = [twin for data in newest.values() for twin in TwinList.model_validate_json(data).twins]
        most = max(MAX_OBSERVATIONS // max(len(found), 1), 1)
        shown = [twin.replace(history=twin.history[-most:]) for twin in sorted(found, key=lambda twin: twin.seat)]
        return TwinList(twins=tuple(shown))

    async def commit(self, experiment: Experiment, order: RoundOrder[Any], memory: EdgeMemory, twins: Twins) -> None:
        """Saves a trained round: first the state as a file, then in one transaction its digest and the twins.

        The state from which the round began is kept too, since the cloud may repeat the round; older ones go.
        """
        after, before = Version(order.round_no), order.base or Version(order.round_no)
        kept = {key(order, version) for version in (before, after) for key in (self._state_key, self._twins_key)}
        known = TwinList(twins=tuple(twin for _, twin in sorted(twins.known.items())))
        async with self._committing:
            digest, newest = await self.thread.run(self._write, experiment, memory)
            self._newest[order.run_id, order.edge] = digest, newest
            while len(self._newest) > NEWEST:
                del self._newest[next(iter(self._newest))]

            async def commit() -> None:
                states = await self.store.scan(redis_keys.edge_states(self.edge_name, order.run_id, order.edge))
                batch, old = Batch().put(self._state_key(order, after), digest.encode()), list(states)
                if known.twins:
                    old += await self.store.keys(redis_keys.edge_twins_of(self.edge_name, order.run_id, order.edge))
                    batch = batch.put(self._twins_key(order, after), known.model_dump_json().encode())
                await self.store.commit(batch.delete(*(key for key in old if key not in kept)))
                if set(states.values()) != {digest.encode()}:  # most algorithms' state at an edge never changes
                    await self._collect()

            await self._retried(commit)

    def _write(self, experiment: Experiment, memory: EdgeMemory) -> tuple[str, EdgeMemory]:
        """Writes the file of a checkpoint; returns its digest, and the memory for the next round."""
        digest = self.blobs.put(encode_checkpoint(experiment, memory).parts)
        return digest, as_decoded(experiment, memory)

    # ---- whole runs

    async def runs(self) -> set[str]:
        """The runs of which anything is kept here."""
        known = await self.store.keys(redis_keys.edge_runs(self.edge_name))
        in_redis = {redis_keys.run_at_edge(self.edge_name, key) for key in known}
        return in_redis | set(await self.thread.run(self.seat_states.runs))

    async def forget(self, run_id: str) -> None:
        """Removes everything of a deleted run."""
        log_event("run.deleted", run=run_id)
        self._newest = {key: kept for key, kept in self._newest.items() if key[0] != run_id}
        async with self._committing:
            for prefix in redis_keys.all_of_run_at_edge(self.edge_name, run_id):
                await self.store.delete_prefix(prefix)
            await self.thread.run(self.seat_states.drop_run, run_id)
            await self._collect()

    async def _collect(self) -> None:
        """Removes the files to which no state refers."""
        of_runs = await self.store.scan(redis_keys.edge_runs(self.edge_name))
        states = {value.decode() for key, value in of_runs.items() if ":state:" in key}
        await self.thread.run(self.blobs.collect, states)

    # ---- Redis

    async def _retried(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs reads and writes that may be repeated, again while Redis cannot be reached.

        Raises:
            DeadlineExceeded: it could not be reached for too long.
        """
        peer = f"the Redis of edge {self.edge_name}"
        return await retry(lambda left: work(), limit_s=STORE_S, peer=peer, over=(StoreUnavailable,))

    async def _get(self, key: str) -> bytes | None:
        return await self._retried(lambda: self.store.get(key))

    def _state_key(self, order: RoundOrder[Any], version: Version) -> str:
        return redis_keys.edge_state(self.edge_name, order.run_id, order.edge, version)

    def _twins_key(self, order: RoundOrder[Any], version: Version) -> str:
        return redis_keys.edge_twins(self.edge_name, order.run_id, order.edge, version)
