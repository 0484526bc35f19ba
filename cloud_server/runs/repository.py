"""What the cloud stores of runs: documents, checkpoints, the log of rounds, events, evaluations.

A round is committed in one transaction. Its files (the state, the rows of its visits) are written first. Then one batch
sets the digest of the state, the document, the placement, the log of rounds and the events. The batch fails if the
digest in the store is not the one that the round began from.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter

from cloud_server.runs.best import stored_best, with_best
from cloud_server.runs.checkpoint import (
    Checkpoint,
    CheckpointFiles,
    PendingEvaluation,
    RunUnreadable,
    StateUnreadable,
    reading,
)
from cloud_server.runs.events import EventListener, RunEvent
from cloud_server.runs.loose_checkpoint import checkpoint_type
from cloud_server.runs.placement import Placement
from cloud_server.runs.wholeness import gone, needed
from shared.core.errors import Conflict, NotFound, TooMany
from shared.federation.experiment import Experiment
from shared.run_records.events import Event
from shared.run_records.rounds import Evaluation, RoundDetail, RoundInfo
from shared.run_records.run_order import sequence_of
from shared.run_records.runs import BestModel, RunInfo, RunPage, UnreadableRun
from shared.run_records.visits import VisitRow
from shared.runtime.compute_thread import ComputeThread
from shared.storage import redis_keys
from shared.storage.blobs import BlobCorrupt, BlobMissing, Blobs
from shared.storage.key_value import Batch, GuardFailed, KeyGone, Store
from shared.wire import codec

log = logging.getLogger(__name__)
_ROWS = TypeAdapter(tuple[VisitRow, ...])
_EVALUATION = TypeAdapter(dict[str, Evaluation])


class RunRepository:
    """The runs in the cloud's Redis and files.

    Args:
        store: Redis.
        blobs: the files.
        thread: the thread that reads and writes files.
        max_runs: runs that are stored at most.
        on_event: is called with every event that has been stored.
    """

    def __init__(
        self, store: Store, blobs: Blobs, thread: ComputeThread, max_runs: int, on_event: EventListener
    ) -> None:
        self.store, self.blobs, self.thread, self.max_runs = store, blobs, thread, max_runs
        self.on_event = on_event
        self._deleted: dict[str, float] = {}
        self._written: dict[str, CheckpointFiles] = {}

    # ---- documents

    async def create(self, info: RunInfo, idempotency_key: str | None, body_digest: str) -> str:
        """Store a new run. The same idempotency key returns the run that it created before, unless that was deleted.

        Raises:
            Conflict: the key was used with another body.
            GuardFailed: a run has that id, or had it a short time ago.
            TooMany: as many runs are stored as `max_runs` allows.
        """
        batch = Batch().expect(redis_keys.cloud_run(info.run), None).expect(redis_keys.cloud_deleted(info.run), None)
        if idempotency_key:
            key = redis_keys.cloud_idempotency(idempotency_key)
            before = await self.store.get(key)
            known = json.loads(before) if before is not None else None
            if known and await self.store.get(redis_keys.cloud_run(known["run"])) is not None:
                if known["digest"] != body_digest:
                    raise Conflict("this Idempotency-Key was used with another body", field="Idempotency-Key")
                return str(known["run"])
            value = json.dumps({"run": info.run, "digest": body_digest}).encode()
            batch.expect(key, before).put(key, value, redis_keys.IDEMPOTENCY_TTL_S)
        if len(await self.run_ids()) >= self.max_runs:
            raise TooMany(f"{self.max_runs} runs are stored (CLOUD_MAX_RUNS): delete one that has ended")
        event = RunEvent("run.status", {"status": info.status, "sequence": info.sequence, "owner": info.owner})
        await self._commit(info.run, self._with_document(batch, info), event)
        return info.run

    async def save(self, info: RunInfo, *events: RunEvent) -> None:
        """Store a changed document with its events in one transaction."""
        await self._commit(info.run, self._with_document(Batch(), info), *events)

    def _with_document(self, batch: Batch, info: RunInfo) -> Batch:
        """A batch that also stores a document, and lists the run: the store may have been emptied meanwhile."""
        batch.put(redis_keys.cloud_runs(info.run), f"{info.created_at} {info.sequence or ''}".rstrip().encode())
        return batch.put(redis_keys.cloud_run(info.run), info.model_dump_json().encode())

    async def _commit(self, run_id: str, batch: Batch, *events: RunEvent) -> None:
        """Commit a batch with events of a run, then pass these to the listener."""
        for event in events:
            batch.append(redis_keys.cloud_events(run_id), event.payload())
        await self.store.commit(batch)
        for event in events:
            self.on_event(run_id, event)

    async def info(self, run_id: str) -> RunInfo:
        """A run's document; `latest` is the newest run whose document can be read.

        Raises:
            NotFound: there is no such run.
            RunUnreadable: its document is of another version, or missing.
        """
        if run_id == "latest":
            return await self._latest()
        data = await self.store.get(redis_keys.cloud_run(run_id))
        if data is None and await self.store.get(redis_keys.cloud_runs(run_id)) is None:
            raise NotFound(f"no run {run_id!r}: a cloud finds a run by its id, or as `latest`")
        if data is None:
            raise RunUnreadable(f"the document of run {run_id} is missing: was it deleted in part?")
        with reading(run_id, "the document"):
            return RunInfo.model_validate_json(data)

    async def _latest(self) -> RunInfo:
        known = await self.run_ids()
        for run_id in known:
            with suppress(NotFound, RunUnreadable):
                return await self.info(run_id)
        raise NotFound(f"none of {len(known)} runs can be read" if known else "there are no runs yet")

    async def page(self, limit: int | None = None) -> RunPage:
        """The newest runs, newest first; those whose documents this version cannot read apart, with the reason."""
        found, unreadable = [], []
        for _, run_id, created_at in (await self._index())[:limit]:
            try:
                found.append(await self.info(run_id))
            except RunUnreadable as error:
                unreadable.append(UnreadableRun(run=run_id, created_at=created_at, reason=error.detail))
            except NotFound:  # deleted meanwhile
                continue
        return RunPage(runs=tuple(found), unreadable=tuple(unreadable))

    async def infos(self, limit: int | None = None) -> list[RunInfo]:
        """The newest runs that can be read, newest first."""
        return list((await self.page(limit)).runs)

    async def run_ids(self) -> list[str]:
        """All runs, newest first."""
        return [run_id for _, run_id, _ in await self._index()]

    async def newest_sequence(self) -> int:
        """The largest number that orders a run; 0 for none."""
        return max((sequence for sequence, _, _ in await self._index()), default=0)

    async def _index(self) -> list[tuple[int, str, str]]:
        """All runs with the numbers that order them and their creation times, newest first."""
        found = []
        for key, entry in (await self.store.scan(redis_keys.CLOUD_RUNS)).items():
            created_at, _, sequence = entry.decode(errors="replace").partition(" ")
            number = sequence_of(int(sequence) if sequence.isdecimal() else 0, created_at)
            found.append((number, redis_keys.run_of_index(key), created_at))
        return sorted(found, reverse=True)

    async def add_event(self, run_id: str, event: RunEvent) -> None:
        """Store an event of a run, and pass it to the listener."""
        await self.store.append(redis_keys.cloud_events(run_id), event.payload())
        self.on_event(run_id, event)

    async def events(self, run_id: str, after: str, block_s: float | None, limit: int = 500) -> list[Event]:
        """The events after an id, up to a number; waits up to `block_s` seconds for the first."""
        entries = await self.store.read(redis_keys.cloud_events(run_id), after=after, limit=limit, block_s=block_s)
        return [Event(id=entry.id, **entry.fields) for entry in entries]

    # ---- rounds

    async def write_state(self, run_id: str, checkpoint: Checkpoint[Any]) -> str:
        """Write the file of a state, to which a commit then refers; returns its digest.

        Until the run's next state is written, no other run deletes it.
        """
        digest = await self.thread.run(lambda: self.blobs.put(codec.encode(checkpoint).parts))
        self._written[run_id] = CheckpointFiles(digest, None)
        return digest

    async def write_visits(self, run_id: str, state: str, detail: RoundDetail) -> CheckpointFiles:
        """Write the visits of the round that led to a state; kept as the file of the state is."""
        digest = await self.thread.run(lambda: self.blobs.put(_ROWS.dump_json(detail.seats)))
        files = self._written[run_id] = CheckpointFiles(state, digest)
        return files

    async def commit(
        self,
        expected_digest: str | None,
        files: CheckpointFiles,
        info: RunInfo,
        placement: Placement,
        detail: RoundDetail | None,
        events: Sequence[RunEvent],
        due: PendingEvaluation | None = None,
    ) -> str:
        """Commit a round in one transaction.

        Args:
            expected_digest: digest of the state that the round began from, None for the first commit.
            files: of the round.
            info: the run's document.
            placement: of the run.
            detail: the record of the round, None for the initial state and within a round.
            events: stored with the commit.
            due: the evaluation that the checkpoint needs, None for none.

        Returns:
            The digest of the state, which the next commit expects.

        Raises:
            Conflict: the state in the store is not the one that the round began from.
            StateUnreadable: something else of the run is gone from the store.
        """
        key, expected = redis_keys.cloud_run_state(info.run), expected_digest.encode() if expected_digest else None
        batch = Batch().expect(key, expected).put(key, files.state.encode())
        batch.need(*(needed(info.run, info.rounds - (detail is not None)) if expected else {}))
        self._with_document(batch, info)
        batch.put(redis_keys.cloud_placement(info.run), placement.model_dump_json().encode())
        if detail is not None:
            short = RoundInfo.model_validate(detail.model_dump(exclude={"seats"}))
            batch.append(
                redis_keys.cloud_rounds(info.run), {"info": short.model_dump(mode="json"), "table": files.visits}
            )
        if due is not None and detail is not None:
            note = {"state": files.state, "due": due.model_dump(mode="json")}
            batch.put(redis_keys.cloud_due(info.run, detail.round_no), json.dumps(note).encode())
        try:
            await self._commit(info.run, batch, *events)
        except GuardFailed:
            why = f"the stored state of run {info.run} is not the one that this round began from"
            raise Conflict(f"{why}: was its Redis emptied, or does another cloud use it?") from None
        except KeyGone as error:
            raise gone(info.run, needed(info.run, info.rounds)[error.key]) from None
        return files.state

    async def checkpoint(self, run_id: str, experiment: Experiment) -> tuple[Checkpoint[Any], str] | None:
        """The last checkpoint and the digest of its state, None before the first commit.

        Raises:
            StateUnreadable: its file is missing or damaged.
        """
        found = await self.store.get(redis_keys.cloud_run_state(run_id))
        if found is None:
            return None
        digest = found.decode()
        return await self._state(run_id, digest, experiment), digest

    async def _state(self, run_id: str, digest: str, experiment: Experiment) -> Checkpoint[Any]:
        kind = checkpoint_type(experiment)
        try:
            data = await self.thread.run(self.blobs.open, digest)
        except (BlobMissing, BlobCorrupt) as error:
            raise StateUnreadable(f"the stored state of run {run_id} cannot be read: {error.detail}") from None
        state: Checkpoint[Any] = await self.thread.run(
            lambda: codec.decode(kind, data, model=experiment.shapes, stored=True, copied=True)
        )
        return state

    async def placement(self, run_id: str) -> Placement:
        """The placement at the last commit; empty before the first."""
        data = await self.store.get(redis_keys.cloud_placement(run_id))
        with reading(run_id, "the assignment of devices to agents"):
            return Placement.model_validate_json(data) if data else Placement(agents={}, edges={})

    async def rounds(self, run_id: str) -> list[RoundInfo]:
        """The committed rounds, with the evaluations that have ended."""
        entries = await self.store.read(redis_keys.cloud_rounds(run_id))
        scores = await self.evaluations(run_id)
        with reading(run_id, "a round"):
            infos = [RoundInfo.model_validate(entry.fields["info"]) for entry in entries]
        return [info.replace(evaluation=scores.get(info.round_no)) for info in infos]

    async def round(self, run_id: str, round_no: int) -> RoundDetail:
        """One training round with the rows of its visits.

        Raises:
            NotFound: it has not been committed.
            StateUnreadable: the file with the rows is missing or damaged.
        """
        details = [detail async for detail in self.details(run_id, range(round_no, round_no + 1))]
        if not details:
            raise NotFound(f"run {run_id} has no committed round {round_no}")
        return details[-1]

    async def details(self, run_id: str, numbers: range) -> AsyncIterator[RoundDetail]:
        """The committed training rounds of these numbers, in order, each with the rows of its visits.

        Raises:
            StateUnreadable: a file with rows is missing or damaged.
        """
        scores = await self.evaluations(run_id)
        for fields in [entry.fields for entry in await self.store.read(redis_keys.cloud_rounds(run_id))]:
            with reading(run_id, "a round"):
                round_no, table = fields["info"]["round_no"], fields["table"]
            if round_no not in numbers:
                continue
            try:
                visits = await self.thread.run(self._visits, run_id, table)
            except (BlobMissing, BlobCorrupt) as error:
                why = f"the tasks of round {round_no} of run {run_id} cannot be read: {error.detail}"
                raise StateUnreadable(why) from None
            detail = {**fields["info"], "evaluation": scores.get(round_no), "seats": visits}
            with reading(run_id, f"round {round_no}"):
                whole = RoundDetail.model_validate(detail)
            yield whole

    def _visits(self, run_id: str, digest: str) -> tuple[VisitRow, ...]:
        with reading(run_id, "the tasks of a round"):
            return _ROWS.validate_json(bytes(self.blobs.open(digest)))

    # ---- evaluations

    async def save_evaluation(
        self, run_id: str, round_no: int, scores: dict[str, Evaluation], best: BestModel | None, event: RunEvent
    ) -> None:
        """Store the evaluation of a round; `best`: the round, if rounds are compared. The best one's state is kept."""
        batch = Batch().put(redis_keys.cloud_evaluation(run_id, round_no), _EVALUATION.dump_json(scores))
        batch.delete(redis_keys.cloud_due(run_id, round_no))
        await self._commit(run_id, await with_best(self.store, batch, best, run_id), event)

    async def best_checkpoint(self, run_id: str, experiment: Experiment) -> tuple[Checkpoint[Any], str] | None:
        """The checkpoint of the best round and the digest of its state."""
        found = await stored_best(self.store, run_id)
        return (await self._state(run_id, found.state, experiment), found.state) if found else None

    async def pending_evaluations(
        self, run_id: str, experiment: Experiment
    ) -> list[tuple[int, Checkpoint[Any], PendingEvaluation]]:
        """The checkpoints that are still to be evaluated, by round."""
        found = []
        for key, data in sorted((await self.store.scan(redis_keys.cloud_dues(run_id))).items()):
            with reading(run_id, "an evaluation that is due"):
                note = json.loads(data)
                digest, due = note["state"], PendingEvaluation.model_validate(note["due"])
            found.append((int(redis_keys.last_part(key)), await self._state(run_id, digest, experiment), due))
        return found

    async def evaluations(self, run_id: str) -> dict[int, dict[str, Evaluation]]:
        """The evaluations that have ended, by round."""
        found = await self.store.scan(redis_keys.cloud_evaluations(run_id))
        with reading(run_id, "an evaluation"):
            return {int(redis_keys.last_part(key)): _EVALUATION.validate_json(data) for key, data in found.items()}

    # ---- files

    async def delete(self, run_id: str) -> None:
        """Delete a run and its files; other tiers learn of it by the answers to their heartbeats."""
        await self.store.put(redis_keys.cloud_deleted(run_id), b"1", redis_keys.DELETED_TTL_S)
        self._deleted[run_id] = time.monotonic()
        self._written.pop(run_id, None)
        for prefix in reversed(redis_keys.all_of_run(run_id)):  # the index last: until then the run can be deleted
            await self.store.delete_prefix(prefix)
        await self.delete_unreferenced_files()

    async def load_deleted(self) -> None:
        """Read which runs an earlier cloud process deleted in the last `DELETED_TTL_S` seconds."""
        for key in await self.store.keys(redis_keys.CLOUD_DELETED):
            self._deleted.setdefault(redis_keys.last_part(key), time.monotonic())

    def deleted(self) -> tuple[str, ...]:
        """The runs that were deleted in the last `DELETED_TTL_S` seconds."""
        now = time.monotonic()
        self._deleted = {run_id: at for run_id, at in self._deleted.items() if now - at < redis_keys.DELETED_TTL_S}
        return tuple(sorted(self._deleted))

    async def delete_unreferenced_files(self) -> list[str]:
        """Delete the files to which nothing refers; returns their digests.

        None is deleted while it cannot be read to which files a run refers.
        """
        referenced: set[str] = set()
        try:
            for run_id in await self.run_ids():
                referenced |= await self._files_of(run_id)
        except RunUnreadable as error:
            log.warning("no files are deleted: %s", error.detail)
            return []
        written = [name for files in self._written.values() for name in (files.state, files.visits) if name]
        return await self.thread.run(self.blobs.collect, referenced, written)

    async def _files_of(self, run_id: str) -> set[str]:
        state = await self.store.get(redis_keys.cloud_run_state(run_id))
        dues = await self.store.scan(redis_keys.cloud_dues(run_id))
        rounds = await self.store.read(redis_keys.cloud_rounds(run_id))
        with reading(run_id, "the names of files"):
            found = {str(json.loads(data)["state"]) for data in dues.values()}
            found |= {str(entry.fields["table"]) for entry in rounds}
        best = await stored_best(self.store, run_id)
        return found | ({state.decode()} if state else set()) | ({best.state} if best else set())
