"""The record of a round's visits: one line for each."""

from __future__ import annotations

from typing import Any

from edge_server.devices import Wave
from shared.algorithms._hooks import Verdict
from shared.costs import Cost, LinkUse
from shared.messages import Failure, Outcome, SeatLine
from shared.population import Seat


def seat_line(wave: Wave, seat: Seat, verdict: Verdict | None, cost: Cost) -> SeatLine:
    """What came of one seat's visit in a wave, and what it cost in the modelled world."""
    number, failed = seat.number, wave.failed()
    outcome, use = wave.outcomes.get(number), wave.links.get(number, LinkUse())
    found, reason = _outcome(outcome, failed.get(number), verdict, used=number in wave.used)
    return SeatLine(
        seat=number,
        edge_round=wave.stage.edge_round,
        wave=wave.stage.wave,
        outcome=found,
        reason=reason,
        label=verdict.label if verdict else None,
        n_samples=outcome.n_samples if outcome else 0,
        train=outcome.train if outcome else None,
        received=outcome.received if outcome else None,
        own=outcome.own if outcome else None,
        down_bytes=use.down_bytes,
        up_bytes=use.up_bytes,
        report_bytes=wave.reports.get(number, 0),
        down_s=cost.down_s,
        compute_s=cost.compute_s,
        up_s=cost.up_s,
        simulated_s=cost.simulated_s,
        energy_j=cost.energy_j,
        fresh_state=outcome.fresh_state if outcome else False,
        figures={**(outcome.figures if outcome else {}), **(verdict.figures if verdict else {})},
    )


def _outcome(
    outcome: Outcome[Any] | None, failure: Failure | None, verdict: Verdict | None, *, used: bool
) -> tuple[str, str | None]:
    """The word for a visit in the record, and the reason where there is one."""
    if failure is not None or outcome is None:
        return "failed", failure.reason if failure else "error"
    if outcome.kind == "evaluate":
        return "evaluated", None
    if verdict is not None and not verdict.upload:
        return "refused", verdict.reason
    if outcome.kind == "collect":
        return "collected", None
    return ("used", None) if used else ("idle", "no update")
