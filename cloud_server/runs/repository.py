"""What the cloud keeps of runs: documents, the committed state, the round log, events, evaluations.

A round is committed in one transaction: its files (state, table of seats) are written first, then one batch sets the
state's reference, the document, the seating, the round log and the events, guarded by the state reference that the
round began from.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from cloud_server.runs.events import EventListener, RunEvent
from cloud_server.runs.placement import Placement
from shared.core.errors import Conflict, NotFound, StrataError, TooMany
from shared.core.records import Record, copy_tensors
from shared.federation.experiment import Experiment
from shared.run_records.events import Event
from shared.run_records.rounds import Evaluation, RoundDetail, RoundInfo
from shared.run_records.runs import RunInfo
from shared.run_records.visits import SeatRow
from shared.runtime.worker import Worker
from shared.storage import redis_keys
from shared.storage.blobs import BlobCorrupt, BlobMissing, Blobs
from shared.storage.key_value import Batch, GuardFailed, Store
from shared.storage.states import Version
from shared.wire import codec

log = logging.getLogger(__name__)
S = TypeVar("S")
_ROWS = TypeAdapter(tuple[SeatRow, ...])
_EVALUATION = TypeAdapter(dict[str, Evaluation])


class Checkpoint(Record, Generic[S]):
    """The state of a run after a round.

    Attributes:
        round_no: the last committed round, 0 before the first.
        state: the algorithm's own.
        bases: by seat, the version of its state of the last visit that counts.
        edge_bases: by home, the version of the edge's state.
        retired: seats that take part no more, with the reason.
    """

    round_no: int
    state: S
    bases: dict[int, Version]
    edge_bases: dict[int, Version]
    retired: dict[int, str]


@dataclass(frozen=True)
class CheckpointFiles:
    """The digests of a round's files: its state, and the table of its seats."""

    state: str
    table: str | None


class PendingEvaluation(Record):
    """A committed state that is still to be evaluated; `final` after the last round."""

    final: bool


class StateGone(StrataError):
    """A file that the store refers to is missing or damaged."""

    code = "state_gone"


class RunRepository:
    """The cloud's Redis and files."""

    def __init__(self, store: Store, blobs: Blobs, worker: Worker, max_runs: int, hear: EventListener) -> None:
        self.store, self.blobs, self.worker, self.max_runs = store, blobs, worker, max_runs
        self.hear = hear  # told of every event that has been kept
        self._deleted: dict[str, float] = {}

    # ---- documents

    async def create(self, info: RunInfo, idempotency_key: str | None, body_digest: str) -> str:
        """Keep a new run; the same idempotency key answers with the run that it made before, until that is deleted.

        Raises:
            Conflict: the key was used with another body.
            TooMany: no more runs are kept.
        """
        batch = Batch().expect(redis_keys.cloud_run(info.run), None)
        if idempotency_key:
            key = redis_keys.cloud_idempotency(idempotency_key)
            before = await self.store.get(key)
            made = json.loads(before) if before is not None else None
            if made and await self.store.get(redis_keys.cloud_run(made["run"])) is not None:
                if made["digest"] != body_digest:
                    raise Conflict("this Idempotency-Key was used with another body", field="Idempotency-Key")
                return str(made["run"])
            value = json.dumps({"run": info.run, "digest": body_digest}).encode()
            batch.expect(key, before).put(key, value, redis_keys.IDEMPOTENCY_TTL_S)
        if len(await self.run_ids()) >= self.max_runs:
            raise TooMany(f"{self.max_runs} runs are kept (CLOUD_MAX_RUNS): delete one that has ended")
        batch.put(redis_keys.cloud_runs(info.run), info.created_at.encode())
        batch.put(redis_keys.cloud_run(info.run), info.model_dump_json().encode())
        await self._commit(info.run, batch, RunEvent("run.status", {"status": info.status}))
        return info.run

    async def save(self, info: RunInfo, *events: RunEvent) -> None:
        """Keep a changed document, with its events, in one transaction."""
        batch = Batch().put(redis_keys.cloud_run(info.run), info.model_dump_json().encode())
        await self._commit(info.run, batch, *events)

    async def _commit(self, run_id: str, batch: Batch, *events: RunEvent) -> None:
        """Carry out a batch with the events of a run, then tell who listens here."""
        for event in events:
            batch.append(redis_keys.cloud_events(run_id), event.payload())
        await self.store.commit(batch)
        for event in events:
            self.hear(run_id, event)

    async def info(self, run_id: str) -> RunInfo:
        """A run's document; `latest` is the newest run.

        Raises:
            NotFound: there is no such run.
        """
        if run_id == "latest":
            known = await self.run_ids()
            if not known:
                raise NotFound("there are no runs yet")
            run_id = known[0]
        data = await self.store.get(redis_keys.cloud_run(run_id))
        if data is None:
            raise NotFound(f"no run {run_id!r}")
        try:
            return RunInfo.model_validate_json(data)
        except ValidationError as error:
            raise StateGone(f"the document of run {run_id} is of another version: {error.errors()[0]['msg']}") from None

    async def infos(self, limit: int | None = None) -> list[RunInfo]:
        """The newest runs, newest first, without those whose documents this version cannot read."""
        found = []
        for run_id in (await self.run_ids())[:limit]:
            try:
                found.append(await self.info(run_id))
            except (StateGone, NotFound) as error:
                log.warning("left out: %s", error.detail)
        return found

    async def run_ids(self) -> list[str]:
        """All runs, newest first."""
        index = await self.store.scan(redis_keys.CLOUD_RUNS)
        newest = sorted(index.items(), key=lambda item: (item[1], item[0]), reverse=True)
        return [redis_keys.run_of_index(key) for key, _ in newest]

    async def event(self, run_id: str, event: RunEvent) -> None:
        """Tell what happened."""
        await self.store.append(redis_keys.cloud_events(run_id), event.payload())
        self.hear(run_id, event)

    async def events(self, run_id: str, after: str, block_s: float | None) -> list[Event]:
        """Events after an id, waiting up to `block_s` for one."""
        entries = await self.store.read(redis_keys.cloud_events(run_id), after=after, limit=500, block_s=block_s)
        return [Event(id=entry.id, **entry.fields) for entry in entries]

    # ---- rounds

    async def write(self, committed: Checkpoint[Any], detail: RoundDetail | None) -> CheckpointFiles:
        """Write the files of a round, which its commit then refers to."""
        return await self.worker.run(self._write, committed, detail)

    def _write(self, committed: Checkpoint[Any], detail: RoundDetail | None) -> CheckpointFiles:
        digest = self.blobs.put(codec.encode(committed).parts)
        return CheckpointFiles(digest, self.blobs.put(_ROWS.dump_json(detail.seats)) if detail else None)

    async def commit(
        self,
        before: str | None,
        written: CheckpointFiles,
        info: RunInfo,
        binding: Placement,
        detail: RoundDetail | None,
        events: Sequence[RunEvent],
        due: PendingEvaluation | None = None,
    ) -> str:
        """Commit a round in one transaction; answers with the digest of the state, the guard of the next.

        Args:
            before: the digest that the round began from, None for the first commit.
            written: its files.
            info: the run's document.
            binding: who sits where.
            detail: the round, None for the initial state.
            events: told with the commit.
            due: the evaluation that the state waits for, None for none.

        Raises:
            Conflict: the state in the store is not the one that the round began from.
        """
        batch = Batch().expect(redis_keys.cloud_run_state(info.run), before.encode() if before else None)
        batch.put(redis_keys.cloud_run_state(info.run), written.state.encode())
        batch.put(redis_keys.cloud_run(info.run), info.model_dump_json().encode())
        batch.put(redis_keys.cloud_seating(info.run), binding.model_dump_json().encode())
        if detail is not None:
            short = RoundInfo.model_validate(detail.model_dump(exclude={"seats"}))
            batch.append(
                redis_keys.cloud_rounds(info.run), {"info": short.model_dump(mode="json"), "table": written.table}
            )
        if due is not None and detail is not None:
            note = {"state": written.state, "due": due.model_dump(mode="json")}
            batch.put(redis_keys.cloud_due(info.run, detail.round_no), json.dumps(note).encode())
        try:
            await self._commit(info.run, batch, *events)
        except GuardFailed:
            raise Conflict(
                f"the state kept of run {info.run} is not the one that this round began from: "
                "was its Redis emptied, or does another cloud use it?"
            ) from None
        return written.state

    async def committed(self, run_id: str, experiment: Experiment) -> tuple[Checkpoint[Any], str] | None:
        """The last committed state and its digest, None before the first commit.

        Raises:
            StateGone: its file is missing or damaged.
        """
        found = await self.store.get(redis_keys.cloud_run_state(run_id))
        if found is None:
            return None
        digest = found.decode()
        return await self._state(run_id, digest, experiment), digest

    async def _state(self, run_id: str, digest: str, experiment: Experiment) -> Checkpoint[Any]:
        kind: Any = Checkpoint
        try:
            data = await self.worker.run(self.blobs.open, digest)
        except (BlobMissing, BlobCorrupt) as error:
            raise StateGone(f"the committed state of run {run_id} cannot be read: {error.detail}") from None
        state: Checkpoint[Any] = await self.worker.run(
            lambda: copy_tensors(
                codec.decode(kind[experiment.algorithm.cloud_state], data, model=experiment.shapes, stored=True)
            )
        )
        return state

    async def binding(self, run_id: str) -> Placement:
        """Who sat where at the last commit."""
        data = await self.store.get(redis_keys.cloud_seating(run_id))
        return Placement.model_validate_json(data) if data else Placement(agents={}, edges={})

    async def rounds(self, run_id: str) -> list[RoundInfo]:
        """The committed rounds, with the evaluations that are ready."""
        entries = await self.store.read(redis_keys.cloud_rounds(run_id))
        scores = await self.evaluations(run_id)
        infos = [RoundInfo.model_validate(entry.fields["info"]) for entry in entries]
        return [info.replace(evaluation=scores.get(info.round_no)) for info in infos]

    async def round(self, run_id: str, round_no: int) -> RoundDetail:
        """One training round with its table of seats.

        Raises:
            NotFound: it has not been committed.
            StateGone: its table is missing or damaged.
        """
        details = [detail async for detail in self.details(run_id, range(round_no, round_no + 1))]
        if not details:
            raise NotFound(f"run {run_id} has no committed round {round_no}")
        return details[-1]

    async def details(self, run_id: str, numbers: range) -> AsyncIterator[RoundDetail]:
        """The committed training rounds of these numbers, in order, each with its table of seats.

        Raises:
            StateGone: a table is missing or damaged.
        """
        scores = await self.evaluations(run_id)
        for fields in [entry.fields for entry in await self.store.read(redis_keys.cloud_rounds(run_id))]:
            round_no = fields["info"]["round_no"]
            if round_no not in numbers:
                continue
            try:
                table = await self.worker.run(self._table, fields["table"])
            except (BlobMissing, BlobCorrupt) as error:
                why = f"the table of round {round_no} of run {run_id} cannot be read: {error.detail}"
                raise StateGone(why) from None
            detail = {**fields["info"], "evaluation": scores.get(round_no), "seats": table}
            yield RoundDetail.model_validate(detail)

    def _table(self, digest: str) -> tuple[SeatRow, ...]:
        return _ROWS.validate_json(bytes(self.blobs.open(digest)))

    # ---- evaluations

    async def evaluated(self, run_id: str, round_no: int, scores: dict[str, Evaluation], final: bool) -> None:
        """A round's evaluation is ready."""
        data = {name: score.model_dump(mode="json") for name, score in scores.items()}
        event = RunEvent("round.evaluated", {"round_no": round_no, "evaluation": data, "final": final})
        batch = Batch().put(redis_keys.cloud_evaluation(run_id, round_no), _EVALUATION.dump_json(scores))
        batch.delete(redis_keys.cloud_due(run_id, round_no))
        await self._commit(run_id, batch, event)

    async def due(self, run_id: str, experiment: Experiment) -> list[tuple[int, Checkpoint[Any], PendingEvaluation]]:
        """The committed states that wait for their evaluation, by round."""
        found = []
        for key, data in sorted((await self.store.scan(redis_keys.cloud_dues(run_id))).items()):
            note = json.loads(data)
            state = await self._state(run_id, note["state"], experiment)
            found.append((int(redis_keys.last_part(key)), state, PendingEvaluation.model_validate(note["due"])))
        return found

    async def evaluations(self, run_id: str) -> dict[int, dict[str, Evaluation]]:
        """By round, what has been evaluated."""
        found = await self.store.scan(redis_keys.cloud_evaluations(run_id))
        return {int(redis_keys.last_part(key)): _EVALUATION.validate_json(data) for key, data in found.items()}

    # ---- files

    async def delete(self, run_id: str) -> None:
        """Forget a run and its files; other tiers are told with their heartbeats."""
        await self.store.put(redis_keys.cloud_deleted(run_id), b"1", redis_keys.DELETED_TTL_S)
        self._deleted[run_id] = time.monotonic()
        for prefix in redis_keys.all_of_run(run_id):
            await self.store.delete_prefix(prefix)
        await self.collect()

    async def load_deleted(self) -> None:
        """Read which runs an earlier cloud process deleted lately."""
        for key in await self.store.keys(redis_keys.CLOUD_DELETED):
            self._deleted.setdefault(redis_keys.last_part(key), time.monotonic())

    def deleted(self) -> tuple[str, ...]:
        """The runs that were deleted lately."""
        now = time.monotonic()
        self._deleted = {run_id: at for run_id, at in self._deleted.items() if now - at < redis_keys.DELETED_TTL_S}
        return tuple(sorted(self._deleted))

    async def collect(self) -> list[str]:
        """Remove files that nothing refers to."""
        referenced: set[str] = set()
        for run_id in await self.run_ids():
            state = await self.store.get(redis_keys.cloud_run_state(run_id))
            referenced |= {state.decode()} if state else set()
            dues = await self.store.scan(redis_keys.cloud_dues(run_id))
            referenced |= {json.loads(data)["state"] for data in dues.values()}
            referenced |= {entry.fields["table"] for entry in await self.store.read(redis_keys.cloud_rounds(run_id))}
        return await self.worker.run(self.blobs.collect, referenced)
