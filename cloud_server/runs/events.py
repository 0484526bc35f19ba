"""What is told of a run: the events behind `GET /runs/{id}/events`.

What happens to runs, as lines of the cloud's log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cloud_server.nodes.liveness import Change
from cloud_server.runs.placement import PlacementChange
from shared.run_records.rounds import RoundDetail
from shared.runtime.logs import log_event

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunEvent:
    """An event before it has an id."""

    kind: str
    data: dict[str, Any]

    def payload(self) -> dict[str, Any]:
        """The event as it lies in the stream."""
        return {"kind": self.kind, "at": now(), "data": self.data}


EventListener = Callable[[str, RunEvent], None]
"""Hears of what happens to a run, by its id."""


def to_all(*listeners: EventListener) -> EventListener:
    """One who tells others, each whatever becomes of the next: what is counted and logged is no matter of the run."""

    def hear(run_id: str, event: RunEvent) -> None:
        for listener in listeners:
            try:
                listener(run_id, event)
            except Exception:
                log.exception("an event of run %s was not taken", run_id)

    return hear


def now() -> str:
    """The wall clock for display, ISO 8601 UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def placement_events(moves: Sequence[PlacementChange]) -> list[RunEvent]:
    """A seat was taken, or left, or went to another agent; a home went to another edge."""
    return [_placement_event(move) for move in moves]


def _placement_event(move: PlacementChange) -> RunEvent:
    if move.what == "home":
        return RunEvent("home.moved", {"home": move.number, "edge": move.holder, "from": move.before})
    if move.holder is None:
        return RunEvent("seat.left", {"seat": move.number, "agent": move.before})
    if move.before is None:
        return RunEvent("seat.taken", {"seat": move.number, "agent": move.holder})
    return RunEvent("seat.moved", {"seat": move.number, "agent": move.holder, "from": move.before})


def profile_events(round_no: int, before: Mapping[int, str], profiles: Mapping[int, str]) -> list[RunEvent]:
    """Seats that have another profile in this round than they had before, by their agents."""
    changed = {seat: name for seat, name in sorted(profiles.items()) if before.get(seat, name) != name}
    return [
        RunEvent("seat.profile", {"round_no": round_no, "seat": seat, "profile": name, "from": before[seat]})
        for seat, name in changed.items()
    ]


def node_events(changes: Sequence[Change]) -> list[RunEvent]:
    """A node became another state."""
    return [RunEvent(f"node.{change.state}", {"kind": change.kind, "name": change.name}) for change in changes]


def round_events(detail: RoundDetail) -> list[RunEvent]:
    """A round was committed; what it lost, who was retired."""
    short = detail.model_dump(mode="json", exclude={"seats", "failures", "edges", "figures"})
    events = [RunEvent("round.committed", short)]
    for failure in detail.failures:
        events.append(RunEvent("contribution.lost", {"round_no": detail.round_no, **failure.model_dump()}))
    for seat, reason in detail.retired.items():
        events.append(RunEvent("seat.retired", {"round_no": detail.round_no, "seat": seat, "reason": reason}))
    return events


OF_A_ROUND = frozenset(
    {"round_no", "phase", "attempts", "n_visits", "n_used", "train_loss", "client_accuracy", "bytes_up", "bytes_down"}
    | {"socket_bytes", "simulated_s", "wall_s"}
)
BAD = frozenset({"contribution.lost", "round.retried", "node.lost", "tracking.failed"})


def log_run_event(run_id: str, event: RunEvent) -> None:
    """Log an event of a run."""
    data: dict[str, Any] = dict(event.data)
    if event.kind == "round.committed":
        data = {name: value for name, value in data.items() if name in OF_A_ROUND}
    if event.kind == "round.evaluated":
        data |= {name: data["evaluation"].get("global", {}).get(name) for name in ("accuracy", "loss")}
    data = {name: value for name, value in data.items() if isinstance(value, str | int | float)}
    fields = {("round" if name == "round_no" else name): value for name, value in data.items()}
    log_event(event.kind, level=_level(event), **{"run": run_id, **fields})


def _level(event: RunEvent) -> int:
    failed = event.kind == "run.status" and event.data["status"] == "failed"
    return logging.WARNING if failed or event.kind in BAD else logging.INFO
