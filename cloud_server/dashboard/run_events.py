"""The events of a run as a table on its page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from cloud_server.dashboard.tables import columns_of
from cloud_server.runs.repository import RunRepository
from shared.run_records.events import Event

_COLUMNS = ("time (UTC)", "event", "what happened")
_MOST_SHOWN = 1000
"""The table shows at most this many of the newest events."""
_PAGES_A_REFRESH = 4
"""Pages of stored events that one refresh reads at most, so that a long run's do not delay the page."""


class RunEvents:
    """The events of a run, read while the table is open.

    Args:
        repository: of the runs.
        run_id: the run.
    """

    def __init__(self, repository: RunRepository, run_id: str) -> None:
        self._repository, self._run_id = repository, run_id
        self._after, self._rows = "0", deque[dict[str, str]](maxlen=_MOST_SHOWN)
        with ui.expansion("Events", icon="list_alt", on_value_change=self.refresh).classes("w-full") as self._box:
            self._filter = ui.input("Filter events", placeholder="late, edge-1, round 3").props("clearable dense")
            columns = columns_of(_COLUMNS, sortable=False)
            self._table = ui.table(columns=columns, rows=[], row_key="id", pagination=20).classes("w-full")
            self._table.props('flat dense wrap-cells no-data-label="No event yet"')
            self._table.bind_filter_from(self._filter, "value")

    async def refresh(self) -> None:
        """Read the events that are new, if the table is open."""
        if not self._box.value:
            return
        before = self._after
        for _ in range(_PAGES_A_REFRESH):
            events = await self._repository.events(self._run_id, self._after, None)
            for event in events:
                self._after = event.id
                self._rows.appendleft(_row(event))
            if not events:
                break
        if self._after != before:
            self._table.rows = list(self._rows)
            self._table.update()


def _row(event: Event) -> dict[str, str]:
    cells = (event.at[:23].replace("T", " "), event.kind, event_text(event))
    return {"id": event.id, **dict(zip(_COLUMNS, cells, strict=True))}


def event_text(event: Event) -> str:
    """What an event says, as a sentence."""
    make = _TEXTS.get(event.kind)
    try:
        if event.kind.startswith("node."):
            return f"{event.data['kind'].capitalize()} {event.data['name']} is {event.kind.removeprefix('node.')}."
        return make(event.data) if make else _plain(event.data)
    except LookupError:  # stored by another version
        return _plain(event.data)


def _plain(data: Mapping[str, Any]) -> str:
    known = {name: value for name, value in data.items() if isinstance(value, str | int | float) and value != ""}
    return ", ".join(f"{name} {value}" for name, value in known.items())


def _status(data: Mapping[str, Any]) -> str:
    return f"The run is {data['status']}" + (f": {data['reason']}" if data.get("reason") else ".")


def _evaluated(data: Mapping[str, Any]) -> str:
    score = data.get("score")
    found = "" if score is None else f": {data['metric']} {score:.4g} of the global model"
    return f"Round {data['round_no']} was evaluated{found}."


def _lost(data: Mapping[str, Any]) -> str:
    seat, edge = data.get("seat"), data.get("edge") or "?"
    what = f"device {seat} at {edge}" if seat is not None else f"{edge} and its devices"
    return f"Round {data['round_no']}: {what}, {data['reason']}: {data['detail']}"


def _moved(data: Mapping[str, Any]) -> str:
    return f"Devices {data['seats']} went from {data['from']} to {data['agent']}."


_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "run.status": _status,
    "run.note": lambda data: str(data["note"]),
    "run.changed": lambda data: f"After round {data['after_round']} the run went on with changes: {data['reason']}",
    "round.started": lambda data: (
        f"Round {data['round_no']} began" + (f", attempt {data['attempt']}." if data["attempt"] > 1 else ".")
    ),
    "round.committed": lambda data: (
        f"Round {data['round_no']} is done: {data['n_used']} updates used, {data['n_visits']} tasks, "
        f"{data['simulated_s']:.4g} simulated seconds."
    ),
    "round.evaluated": _evaluated,
    "contribution.lost": _lost,
    "seat.profile": lambda data: (
        f"Round {data['round_no']}: device {data['seat']} has the profile {data['profile']} in place of {data['from']}."
    ),
    "seat.moved": _moved,
    "seat.taken": lambda data: f"{data['agent']} hosts devices {data['seats']}.",
    "seat.left": lambda data: f"{data['agent']} no longer hosts devices {data['seats']}.",
    "seat.retired": lambda data: f"Device {data['seat']} takes part no more: {data['reason']}",
    "home.moved": lambda data: f"{data['edge']} serves edge number {data['home']} in place of {data['from']}.",
    "tracking.failed": lambda data: f"{data['tracker']} does not take the run's figures: {data['reason']}",
    "tracking.resumed": lambda data: f"{data['tracker']} takes the run's figures again.",
    "round.retried": lambda data: (
        f"Attempt {data['attempt']} of round {data['round_no']} is repeated: {data['reason']}"
    ),
}
