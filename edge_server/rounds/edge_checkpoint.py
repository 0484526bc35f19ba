"""What an edge stores after a round: the algorithm's state, and its late updates and losses if the run needs them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from edge_server.rounds.stale_updates import LateUpdate, LateUpdateBuffer
from shared.core.records import Record
from shared.core.tensor_records import copy_tensors
from shared.federation.experiment import Experiment
from shared.federation.selection import uses_losses
from shared.wire import codec

S = TypeVar("S")
U = TypeVar("U")


class EdgeCheckpoint(Record, Generic[S, U]):
    """What an edge stores after a round: the algorithm's state, at most one late update per seat, losses by seat."""

    state: S
    late: tuple[LateUpdate[U], ...]
    losses: dict[int, float]


def encode_checkpoint(experiment: Experiment, state: Record, buffer: LateUpdateBuffer) -> codec.Body:
    """The encoded checkpoint of an edge; the algorithm's state alone if the run needs nothing else."""
    if not _keeps_more(experiment):
        return codec.encode(state)
    late, losses = tuple(buffer.late[seat] for seat in sorted(buffer.late)), dict(sorted(buffer.losses.items()))
    return codec.encode(_record_type(experiment)(state=state, late=late, losses=losses))


def decode_checkpoint(experiment: Experiment, data: Any) -> tuple[Any, LateUpdateBuffer]:
    """The algorithm's state and the buffer of a checkpoint, with tensors copied into torch's memory."""
    if not _keeps_more(experiment):
        return copy_tensors(codec.decode(experiment.algorithm.edge_state, data, stored=True)), LateUpdateBuffer()
    kept = copy_tensors(codec.decode(_record_type(experiment), data, stored=True))
    return kept.state, LateUpdateBuffer({item.contribution.seat: item for item in kept.late}, kept.losses)


def _keeps_more(experiment: Experiment) -> bool:
    return experiment.spec.late == "next_round" or uses_losses(experiment.spec)


def _record_type(experiment: Experiment) -> type[Any]:
    kind: type[Any] = EdgeCheckpoint[experiment.algorithm.edge_state, experiment.algorithm.update]  # type: ignore[name-defined]
    return kind
