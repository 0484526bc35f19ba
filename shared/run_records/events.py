"""Events of a run, as the API streams them."""

from __future__ import annotations

from typing import Any

from shared.core.records import Record


class Event(Record):
    """One event of a run, as sent by SSE: `id` is the SSE id (for `Last-Event-ID`), `kind` the SSE event name.

    Kinds: `run.status`, `round.started`, `round.committed`, `round.evaluated`, `round.retried`, `contribution.lost`,
    `seat.profile` (its agent got another profile), `seat.moved`, `seat.taken`, `seat.left`, `seat.retired`,
    `home.moved`, `tracking.failed`, `tracking.resumed`, and `node.` with a `State`.
    """

    id: str
    kind: str
    at: str
    data: dict[str, Any]
