"""The late updates of an edge, and their weight by staleness; also the losses by which seats are selected.

A late update arrives after the deadline of its edge round; with `late: next_round` it is used in a later round.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from edge_server.rounds.wave import Wave
from shared.core.bounds import Count
from shared.core.records import Record
from shared.federation.aggregation import Accumulator
from shared.federation.context import Context
from shared.federation.messages import Contribution
from shared.run_records.visits import VisitRecord

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

    def record_losses(self, wave: Wave) -> None:
        """Notes the training losses of a wave's visits."""
        for seat, outcome in wave.replies.outcomes.items():
            if seat not in wave.decision.unanswered and outcome.train is not None and outcome.train.loss is not None:
                self.losses[seat] = outcome.train.loss

    def busy(self, at_s: float) -> dict[int, float]:
        """Seats that still work on a late update, with the instant at which it arrives."""
        return {seat: item.arrives_s for seat, item in sorted(self.late.items()) if item.arrives_s > at_s}

    def take_arrived(
        self, at_s: float, round_no: int, seats: Container[int], retired: Collection[int]
    ) -> list[LateUpdate[Any]]:
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


def staleness_weight(n_samples: int, staleness: int, discount: float) -> int:
    """The weight of an update whose staleness, its age in rounds, is given: discounted for each round, at least 1."""
    return max(round(n_samples * discount**staleness), 1)


def add_late(ctx: Context, item: LateUpdate[Any], accumulator: Accumulator) -> VisitRecord:
    """Adds a late update to the sum and returns its record; its weight falls with its staleness, its age in rounds.

    Raises:
        NotFinite, OutOfBound, WireError: it cannot be added.
    """
    contribution = item.contribution
    staleness = ctx.round_no - item.round_no
    weight = staleness_weight(contribution.n_samples, staleness, ctx.spec.staleness_discount)
    accumulator.add(contribution.update, weight)
    return VisitRecord(
        seat=contribution.seat,
        edge_round=ctx.edge_round,
        wave=ctx.wave,
        outcome="used_late",
        reason=f"late in round {item.round_no}",
        n_samples=weight,
    )
