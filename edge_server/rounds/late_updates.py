"""What an edge keeps between rounds beside the algorithm's state: late updates, and losses by which it selects.

A late update came after the deadline of its edge round; with `late: next_round` it is used in a later round.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from edge_server.rounds.wave import Wave
from shared.core.records import Count, Record, copy_tensors
from shared.federation.aggregation import Accumulator
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Contribution
from shared.run_records.visits import VisitRecord
from shared.wire import codec

S = TypeVar("S")
U = TypeVar("U")


class LateUpdate(Record, Generic[U]):
    """A late update, as an edge keeps it.

    Attributes:
        round_no: the round for which it was made.
        arrives_s: when it is there, on the run's simulated clock; until then its device is busy.
    """

    round_no: Count
    arrives_s: float
    contribution: Contribution[U]


class EdgeCheckpoint(Record, Generic[S, U]):
    """What an edge keeps of a home: the algorithm's state, late updates (one a seat), losses by seat."""

    state: S
    late: tuple[LateUpdate[U], ...]
    losses: dict[int, float]


@dataclass
class LateUpdateBuffer:
    """What is kept of one home, by seat; of a seat's several late updates the newest.

    Attributes:
        losses: mean training loss of the last visit that the edge heard of.
    """

    late: dict[int, LateUpdate[Any]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)

    def add(self, item: LateUpdate[Any]) -> None:
        """Keep one."""
        self.late[item.contribution.seat] = item

    def hear(self, wave: Wave) -> None:
        """Take note of the losses of a wave's visits."""
        for seat, outcome in wave.outcomes.items():
            if seat not in wave.unheard and outcome.train is not None and outcome.train.loss is not None:
                self.losses[seat] = outcome.train.loss

    def busy(self, at_s: float) -> dict[int, float]:
        """Seats that are still at work on theirs, with the instant at which it arrives."""
        return {seat: item.arrives_s for seat, item in sorted(self.late.items()) if item.arrives_s > at_s}

    def take(self, at_s: float, round_no: int, seats: set[int], retired: Collection[int]) -> list[LateUpdate[Any]]:
        """Take out what earlier rounds' seats that take part here have sent; what retired seats sent goes."""
        due = [
            seat
            for seat, item in sorted(self.late.items())
            if item.arrives_s <= at_s and item.round_no < round_no and seat in seats and seat not in retired
        ]
        found = [self.late[seat] for seat in due]
        self.late = {seat: item for seat, item in self.late.items() if seat not in due and seat not in retired}
        return found


def add_late(ctx: Context, item: LateUpdate[Any], fold: Accumulator) -> VisitRecord:
    """Add a late update with less weight for each round that it is old; its line in the record.

    Raises:
        NotFinite, OutOfBound, WireError: it cannot be added.
    """
    made = item.contribution
    weight = max(round(made.n_samples * ctx.spec.staleness_discount ** (ctx.round_no - item.round_no)), 1)
    fold.add(made.update, weight)
    return VisitRecord(
        seat=made.seat,
        edge_round=ctx.edge_round,
        wave=ctx.wave,
        outcome="used_late",
        reason=f"late in round {item.round_no}",
        n_samples=weight,
    )


def packed(experiment: Experiment, state: Record, stock: LateUpdateBuffer) -> codec.Body:
    """What an edge keeps, encoded; the algorithm's state alone where nothing else is asked for."""
    if not _keeps_more(experiment):
        return codec.encode(state)
    late, losses = tuple(stock.late[seat] for seat in sorted(stock.late)), dict(sorted(stock.losses.items()))
    return codec.encode(_kind(experiment)(state=state, late=late, losses=losses))


def unpacked(experiment: Experiment, data: Any) -> tuple[Any, LateUpdateBuffer]:
    """The algorithm's state and what is kept beside it, in torch's own memory."""
    if not _keeps_more(experiment):
        return copy_tensors(codec.decode(experiment.algorithm.edge_state, data, stored=True)), LateUpdateBuffer()
    kept = copy_tensors(codec.decode(_kind(experiment), data, stored=True))
    return kept.state, LateUpdateBuffer({item.contribution.seat: item for item in kept.late}, kept.losses)


def _keeps_more(experiment: Experiment) -> bool:
    return experiment.spec.late == "next_round" or experiment.spec.select == "power_of_choice"


def _kind(experiment: Experiment) -> type[Any]:
    kind: type[Any] = EdgeCheckpoint[experiment.algorithm.edge_state, experiment.algorithm.update]  # type: ignore[name-defined]
    return kind
