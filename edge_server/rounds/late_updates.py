"""What an edge keeps between rounds beside the algorithm's state: late updates, and losses for the selection.

A late update arrives after the deadline of its edge round; with `late: next_round` it is used in a later round.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from edge_server.rounds.wave import Wave
from shared.core.records import Count, Record
from shared.core.tensor_records import copy_tensors
from shared.federation.aggregation import Accumulator
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Contribution
from shared.run_records.visits import VisitRecord
from shared.wire import codec

S = TypeVar("S")
U = TypeVar("U")


class LateUpdate(Record, Generic[U]):
    """A late update in an edge's buffer.

    Attributes:
        round_no: the round in which it was trained.
        arrives_s: when it arrives, on the run's simulated clock; until then its device is busy.
    """

    round_no: Count
    arrives_s: float
    contribution: Contribution[U]


class EdgeCheckpoint(Record, Generic[S, U]):
    """What an edge stores after a round: the algorithm's state, at most one late update per seat, losses by seat."""

    state: S
    late: tuple[LateUpdate[U], ...]
    losses: dict[int, float]


@dataclass
class LateUpdateBuffer:
    """The late updates of one edge, by seat; of several by one seat, the newest.

    Attributes:
        losses: mean training loss of each seat's last visit whose answer reached the edge.
    """

    late: dict[int, LateUpdate[Any]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)

    def add(self, item: LateUpdate[Any]) -> None:
        """Adds a late update."""
        self.late[item.contribution.seat] = item

    def note_losses(self, wave: Wave) -> None:
        """Notes the training losses of a wave's visits."""
        for seat, outcome in wave.replies.outcomes.items():
            if seat not in wave.decision.unheard and outcome.train is not None and outcome.train.loss is not None:
                self.losses[seat] = outcome.train.loss

    def busy(self, at_s: float) -> dict[int, float]:
        """Seats that still work on a late update, with the instant at which it arrives."""
        return {seat: item.arrives_s for seat, item in sorted(self.late.items()) if item.arrives_s > at_s}

    def take(self, at_s: float, round_no: int, seats: set[int], retired: Collection[int]) -> list[LateUpdate[Any]]:
        """Removes and returns the late updates that have arrived by `at_s`.

        Args:
            at_s: on the run's simulated clock.
            round_no: only updates of earlier rounds are returned.
            seats: only updates of these seats, which take part here, are returned.
            retired: seats whose updates are discarded.
        """
        due = [
            seat
            for seat, item in sorted(self.late.items())
            if item.arrives_s <= at_s and item.round_no < round_no and seat in seats and seat not in retired
        ]
        found = [self.late[seat] for seat in due]
        self.late = {seat: item for seat, item in self.late.items() if seat not in due and seat not in retired}
        return found


def add_late(ctx: Context, item: LateUpdate[Any], accumulator: Accumulator) -> VisitRecord:
    """Adds a late update to the sum, discounted for each round of its age; returns its record.

    Raises:
        NotFinite, OutOfBound, WireError: it cannot be added.
    """
    contribution = item.contribution
    weight = max(round(contribution.n_samples * ctx.spec.staleness_discount ** (ctx.round_no - item.round_no)), 1)
    accumulator.add(contribution.update, weight)
    return VisitRecord(
        seat=contribution.seat,
        edge_round=ctx.edge_round,
        wave=ctx.wave,
        outcome="used_late",
        reason=f"late in round {item.round_no}",
        n_samples=weight,
    )


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
    return experiment.spec.late == "next_round" or experiment.spec.select == "power_of_choice"


def _record_type(experiment: Experiment) -> type[Any]:
    kind: type[Any] = EdgeCheckpoint[experiment.algorithm.edge_state, experiment.algorithm.update]  # type: ignore[name-defined]
    return kind
