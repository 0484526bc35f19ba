"""Updates that came after their edge round's deadline and are used in a later round (`late: next_round`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from shared import wire
from shared.context import Ctx
from shared.lab import Lab
from shared.messages import Contribution, SeatLine
from shared.records import Count, Record, own
from shared.sums import Fold

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
    """What an edge keeps of a home between rounds: the algorithm's state and late updates, one a seat."""

    state: S
    late: tuple[Late[U], ...]


@dataclass
class Stock:
    """The late updates of one home, by seat; of a seat's several the newest is kept."""

    late: dict[int, Late[Any]] = field(default_factory=dict)

    def add(self, item: Late[Any]) -> None:
        """Keep one."""
        self.late[item.contribution.seat] = item

    def busy(self, at_s: float) -> dict[int, float]:
        """Seats that are still at work on theirs, with the instant at which it arrives."""
        return {seat: item.arrives_s for seat, item in sorted(self.late.items()) if item.arrives_s > at_s}

    def take(self, at_s: float, round_no: int, seats: set[int], retired: Collection[int]) -> list[Late[Any]]:
        """Take out what earlier rounds' seats that take part here have sent; what retired seats sent goes."""
        due = [
            seat
            for seat, item in sorted(self.late.items())
            if item.arrives_s <= at_s and item.round_no < round_no and seat in seats
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


def packed(lab: Lab, state: Record, stock: Stock) -> wire.Body:
    """What an edge keeps, encoded; where late updates are dropped it is the algorithm's state alone."""
    if lab.spec.late == "drop":
        return wire.encode(state)
    return wire.encode(_kind(lab)(state=state, late=tuple(stock.late[seat] for seat in sorted(stock.late))))


def unpacked(lab: Lab, data: Any) -> tuple[Any, Stock]:
    """The algorithm's state and the late updates, in torch's own memory."""
    if lab.spec.late == "drop":
        return own(wire.decode(lab.algorithm.edge_state, data)), Stock()
    kept = own(wire.decode(_kind(lab), data))
    return kept.state, Stock({item.contribution.seat: item for item in kept.late})


def _kind(lab: Lab) -> type[Any]:
    kind: type[Any] = Kept[lab.algorithm.edge_state, lab.algorithm.update]  # type: ignore[name-defined]
    return kind
