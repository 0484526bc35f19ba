"""What an edge keeps between rounds beside the algorithm's state: late updates, and losses by which it selects.

A late update came after the deadline of its edge round; with `late: next_round` it is used in a later round.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from edge_server.rounds.wave import Wave
from shared.core.records import Count, Record, own
from shared.federation.aggregation import Fold
from shared.federation.context import Ctx
from shared.federation.experiment import Lab
from shared.federation.messages import Contribution, SeatLine
from shared.wire import codec

S = TypeVar("S")
U = TypeVar("U")


class Late(Record, Generic[U]):
    """A late update, as an edge keeps it.

    Attributes:
        round_no: the round for which it was made.
        arrives_s: when it is there, on the run's simulated clock; until then its device is busy.
    """

    round_no: Count
    arrives_s: float
    contribution: Contribution[U]


class Kept(Record, Generic[S, U]):
    """What an edge keeps of a home: the algorithm's state, late updates (one a seat), losses by seat."""

    state: S
    late: tuple[Late[U], ...]
    losses: dict[int, float]


@dataclass
class Stock:
    """What is kept of one home, by seat; of a seat's several late updates the newest.

    Attributes:
        losses: mean training loss of the last visit that the edge heard of.
    """

    late: dict[int, Late[Any]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)

    def add(self, item: Late[Any]) -> None:
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

    def take(self, at_s: float, round_no: int, seats: set[int], retired: Collection[int]) -> list[Late[Any]]:
        """Take out what earlier rounds' seats that take part here have sent; what retired seats sent goes."""
        due = [
            seat
            for seat, item in sorted(self.late.items())
            if item.arrives_s <= at_s and item.round_no < round_no and seat in seats and seat not in retired
        ]
        found = [self.late[seat] for seat in due]
        self.late = {seat: item for seat, item in self.late.items() if seat not in due and seat not in retired}
        return found


def fold_in(ctx: Ctx, item: Late[Any], fold: Fold) -> SeatLine:
    """Add a late update with less weight for each round that it is old; its line in the record.

    Raises:
        NotFinite, OutOfBound, WireError: it cannot be added.
    """
    made = item.contribution
    weight = max(round(made.n_samples * ctx.spec.staleness_discount ** (ctx.round_no - item.round_no)), 1)
    fold.add(made.update, weight)
    return SeatLine(
        seat=made.seat,
        edge_round=ctx.edge_round,
        wave=ctx.wave,
        outcome="used_late",
        reason=f"late in round {item.round_no}",
        n_samples=weight,
    )


def packed(lab: Lab, state: Record, stock: Stock) -> codec.Body:
    """What an edge keeps, encoded; the algorithm's state alone where nothing else is asked for."""
    if not _keeps_more(lab):
        return codec.encode(state)
    late, losses = tuple(stock.late[seat] for seat in sorted(stock.late)), dict(sorted(stock.losses.items()))
    return codec.encode(_kind(lab)(state=state, late=late, losses=losses))


def unpacked(lab: Lab, data: Any) -> tuple[Any, Stock]:
    """The algorithm's state and what is kept beside it, in torch's own memory."""
    if not _keeps_more(lab):
        return own(codec.decode(lab.algorithm.edge_state, data, stored=True)), Stock()
    kept = own(codec.decode(_kind(lab), data, stored=True))
    return kept.state, Stock({item.contribution.seat: item for item in kept.late}, kept.losses)


def _keeps_more(lab: Lab) -> bool:
    return lab.spec.late == "next_round" or lab.spec.select == "power_of_choice"


def _kind(lab: Lab) -> type[Any]:
    kind: type[Any] = Kept[lab.algorithm.edge_state, lab.algorithm.update]  # type: ignore[name-defined]
    return kind
