"""What an edge stores after a round: the algorithm's state, and, where needed, late updates and visits in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from edge_server.rounds.collected_samples import Upload
from edge_server.rounds.flights import StoredVisits
from edge_server.rounds.stale_updates import LateUpdate, LateUpdateBuffer
from shared.core.records import Record
from shared.core.tensor_records import TensorMap, copy_tensors
from shared.federation.experiment import Experiment
from shared.federation.selection import uses_losses
from shared.wire import codec

S = TypeVar("S")
U = TypeVar("U")
M = TypeVar("M")


class EdgeCheckpoint(Record, Generic[S, U, M]):
    """What an edge stores after a round: the algorithm's state, at most one late update per seat, losses by seat.

    Attributes:
        stored_visits: visits in flight, with asynchronous devices.
        uploads: the newest upload of each device's collected samples, where they travel.
        residual: the error of the updates that the edge has sent compressed, by field and tensor.
    """

    state: S
    late: tuple[LateUpdate[U], ...]
    losses: dict[int, float]
    stored_visits: StoredVisits[M] | None = None
    uploads: Annotated[dict[int, Upload], Field(exclude_if=lambda uploads: not uploads)] = Field(default_factory=dict)
    residual: TensorMap = Field(default_factory=dict)


@dataclass
class EdgeMemory:
    """What an edge remembers of its last round.

    Attributes:
        state: of the algorithm; None before the first round.
        late: late updates, and losses by seat.
        stored_visits: visits in flight.
        uploads: of collected samples, by seat.
        residual: as in `EdgeCheckpoint`.
    """

    state: Any = None
    late: LateUpdateBuffer = field(default_factory=LateUpdateBuffer)
    stored_visits: StoredVisits[Any] | None = None
    uploads: dict[int, Upload] = field(default_factory=dict)
    residual: TensorMap = field(default_factory=dict)


def encode_checkpoint(experiment: Experiment, memory: EdgeMemory) -> codec.Body:
    """The encoded checkpoint of an edge; the algorithm's state alone if the run needs nothing else."""
    if not _keeps_more(experiment):
        return codec.encode(memory.state)
    buffer = memory.late
    late, losses = tuple(buffer.late[seat] for seat in sorted(buffer.late)), dict(sorted(buffer.losses.items()))
    kind, uploads = _record_type(experiment), dict(sorted(memory.uploads.items()))
    more = {"stored_visits": memory.stored_visits, "uploads": uploads, "residual": memory.residual}
    return codec.encode(kind(state=memory.state, late=late, losses=losses, **more))


def decode_checkpoint(experiment: Experiment, data: Any) -> EdgeMemory:
    """The memory in a checkpoint, with tensors copied into torch's memory."""
    if not _keeps_more(experiment):
        return EdgeMemory(codec.decode(experiment.algorithm.edge_state, data, stored=True, copied=True))
    kept = codec.decode(_record_type(experiment), data, stored=True, copied=True)
    late = LateUpdateBuffer({item.contribution.seat: item for item in kept.late}, kept.losses)
    return EdgeMemory(kept.state, late, kept.stored_visits, kept.uploads, kept.residual)


def as_decoded(experiment: Experiment, memory: EdgeMemory) -> EdgeMemory:
    """The memory as `decode_checkpoint` returns it after `encode_checkpoint`, without either."""
    late, losses = {}, {}
    if _keeps_more(experiment):
        late = {seat: copy_tensors(item) for seat, item in sorted(memory.late.late.items())}
        losses = dict(sorted(memory.late.losses.items()))
    buffer, uploads = LateUpdateBuffer(late, losses), dict(sorted(memory.uploads.items()))
    return EdgeMemory(copy_tensors(memory.state), buffer, memory.stored_visits, uploads, memory.residual)


def _keeps_more(experiment: Experiment) -> bool:
    spec = experiment.spec
    kept = spec.late == "next_round" or spec.collected == "travels" or experiment.edge_compressor.keeps_residual
    return kept or uses_losses(spec) or spec.sync.devices.asynchronous


def _record_type(experiment: Experiment) -> type[Any]:
    algorithm = experiment.algorithm
    return _checkpoint_of(algorithm.edge_state, algorithm.update, algorithm.message_type)


@lru_cache(maxsize=64)
def _checkpoint_of(state: type[Any], update: type[Any], message: type[Any]) -> type[Any]:
    """The type of a checkpoint; pydantic makes it anew in each round if nobody keeps it."""
    kind: type[Any] = EdgeCheckpoint[state, update, message]  # type: ignore[valid-type]
    return kind
