"""What is told of a run: the events behind `GET /runs/{id}/events`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cloud_server.seating import Move
from shared.api import RoundDetail


@dataclass(frozen=True)
class Happening:
    """An event before it has an id."""

    kind: str
    data: dict[str, Any]

    def payload(self) -> dict[str, Any]:
        """The event as it lies in the stream."""
        return {"kind": self.kind, "at": now(), "data": self.data}


def now() -> str:
    """The wall clock for display, ISO 8601 UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def moves_told(moves: Sequence[Move]) -> list[Happening]:
    """A seat was taken, or went to another agent."""
    return [
        Happening("seat.taken", {"seat": move.seat, "agent": move.agent})
        if move.before is None
        else Happening("seat.moved", {"seat": move.seat, "agent": move.agent, "from": move.before})
        for move in moves
    ]


def round_told(detail: RoundDetail) -> list[Happening]:
    """A round was committed; what it lost, who was retired."""
    short = detail.model_dump(mode="json", exclude={"seats", "failures", "edges", "figures"})
    events = [Happening("round.committed", short)]
    for failure in detail.failures:
        events.append(Happening("contribution.lost", {"round_no": detail.round_no, **failure.model_dump()}))
    for seat, reason in detail.retired.items():
        events.append(Happening("seat.retired", {"round_no": detail.round_no, "seat": seat, "reason": reason}))
    return events
