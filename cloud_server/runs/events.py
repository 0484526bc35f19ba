"""Events of a run: what `GET /runs/{id}/events` sends, and lines of the cloud's log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cloud_server.nodes.liveness import StateChange
from cloud_server.runs.placement import EdgeMoved, PlacementChange
from shared.core.bounds import cut
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from shared.runtime.logs import log_event

log = logging.getLogger(__name__)
SEATS_CHARS = 2000
"""Longest text of seats in an event; dots at its end show that it was longer."""


@dataclass(frozen=True)
class RunEvent:
    """An event before it has an id."""

    kind: str
    data: dict[str, Any]

    def payload(self) -> dict[str, Any]:
        """The event as it is stored in the stream of the run."""
        return {"kind": self.kind, "at": now(), "data": self.data}


EventListener = Callable[[str, RunEvent], None]
"""Is called with the id of a run and an event of it."""


def to_all(*listeners: EventListener) -> EventListener:
    """Forwards an event to all listeners. One that fails is logged and affects neither the others nor the run."""

    def forward(run_id: str, event: RunEvent) -> None:
        for listener in listeners:
            try:
                listener(run_id, event)
            except Exception:
                log.exception("a listener failed at an event of run %s", run_id)

    return forward


def now() -> str:
    """The wall clock for display, ISO 8601 UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def placement_events(changes: Sequence[PlacementChange]) -> list[RunEvent]:
    """An event for the seats that an agent took, left or got from another, and for each edge that moved."""
    return [_placement_event(change) for change in changes]


def _placement_event(change: PlacementChange) -> RunEvent:
    if isinstance(change, EdgeMoved):
        return RunEvent("home.moved", {"home": change.edge, "edge": change.process, "from": change.before})
    seats = {"seats": cut(change.seats.text, SEATS_CHARS), "n_seats": len(change.seats)}
    if change.agent is None:
        return RunEvent("seat.left", {**seats, "agent": change.before})
    if change.before is None:
        return RunEvent("seat.taken", {**seats, "agent": change.agent})
    return RunEvent("seat.moved", {**seats, "agent": change.agent, "from": change.before})


def profile_events(round_no: int, before: Mapping[int, str], profiles: Mapping[int, str]) -> list[RunEvent]:
    """An event for each seat whose profile differs from the one it had before."""
    changed = {seat: name for seat, name in sorted(profiles.items()) if before.get(seat, name) != name}
    return [
        RunEvent("seat.profile", {"round_no": round_no, "seat": seat, "profile": name, "from": before[seat]})
        for seat, name in changed.items()
    ]


def node_events(
    changes: Sequence[StateChange], reason: Callable[[StateChange], str | None] = lambda change: None
) -> list[RunEvent]:
    """An event for each agent or edge whose state has changed, with the reason for which it is left out."""
    found = []
    for change in changes:
        why = reason(change) if change.state == "left_out" else None
        data = {"kind": change.kind, "name": change.name} | ({"reason": why} if why else {})
        found.append(RunEvent(f"node.{change.state}", data))
    return found


def note_events(before: RunInfo, info: RunInfo) -> list[RunEvent]:
    """An event for each note that a run's document has more than before."""
    return [RunEvent("run.note", {"note": note}) for note in info.notes[len(before.notes) :]]


def round_events(detail: RoundDetail) -> list[RunEvent]:
    """The events of a committed round: the round itself, its lost contributions, its retired seats."""
    short = detail.model_dump(mode="json", exclude={"seats", "failures", "edges", "figures"})
    events = [RunEvent("round.committed", short)]
    for failure in detail.failures:
        events.append(RunEvent("contribution.lost", {"round_no": detail.round_no, **failure.model_dump(mode="json")}))
    for row in detail.edges:
        if row.fresh_state:
            events.append(RunEvent("state.lost", {"round_no": detail.round_no, "edge": row.edge}))
    for seat, reason in detail.retired.items():
        events.append(RunEvent("seat.retired", {"round_no": detail.round_no, "seat": seat, "reason": reason}))
    return events


ROUND_FIELDS = frozenset(
    {"round_no", "phase", "attempts", "n_visits", "n_used", "train_loss", "client_accuracy", "bytes_up", "bytes_down"}
    | {"socket_bytes", "simulated_s", "wall_s"}
)
"""The fields of a committed round that are logged."""
WARNINGS = frozenset(
    {"contribution.lost", "round.retried", "node.lost", "node.left_out", "state.lost", "store.changed"}
    | {"node.clock", "node.refused", "tracking.failed"}
)


def log_run_event(run_id: str, event: RunEvent) -> None:
    """Log an event of a run."""
    data: dict[str, Any] = dict(event.data)
    if event.kind == "round.committed":
        data = {name: value for name, value in data.items() if name in ROUND_FIELDS}
    if event.kind == "round.evaluated":
        data |= {name: data["evaluation"].get("global", {}).get(name) for name in ("accuracy", "loss")}
    data = {name: value for name, value in data.items() if isinstance(value, str | int | float)}
    fields = {("round" if name == "round_no" else name): value for name, value in data.items()}
    log_event(event.kind, level=_level(event), **{"run": run_id, **fields})


def _level(event: RunEvent) -> int:
    failed = event.kind == "run.status" and event.data["status"] == "failed"
    return logging.WARNING if failed or event.kind in WARNINGS else logging.INFO
