"""What happens to runs, as lines of the cloud's log."""

from __future__ import annotations

import logging
from typing import Any

from cloud_server.happenings import Happening
from shared.runtime.logs import tell

OF_A_ROUND = frozenset(
    {"round_no", "phase", "attempts", "n_visits", "n_used", "train_loss", "client_accuracy", "bytes_up", "bytes_down"}
    | {"socket_bytes", "simulated_s", "wall_s"}
)
BAD = frozenset({"contribution.lost", "round.retried", "node.lost", "tracking.failed"})


def told(run_id: str, event: Happening) -> None:
    """Log an event of a run."""
    data: dict[str, Any] = dict(event.data)
    if event.kind == "round.committed":
        data = {name: value for name, value in data.items() if name in OF_A_ROUND}
    if event.kind == "round.evaluated":
        data |= {name: data["evaluation"].get("global", {}).get(name) for name in ("accuracy", "loss")}
    data = {name: value for name, value in data.items() if isinstance(value, str | int | float)}
    fields = {("round" if name == "round_no" else name): value for name, value in data.items()}
    tell(event.kind, level=_level(event), **{"run": run_id, **fields})


def _level(event: Happening) -> int:
    failed = event.kind == "run.status" and event.data["status"] == "failed"
    return logging.WARNING if failed or event.kind in BAD else logging.INFO
