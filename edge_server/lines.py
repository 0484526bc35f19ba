"""The record of a round's visits: one line for each."""

from __future__ import annotations

from edge_server.arrivals import Paid
from edge_server.wave import Wave
from shared.federation.hooks import Verdict
from shared.federation.messages import SeatLine
from shared.federation.population import Seat


def seat_line(wave: Wave, seat: Seat, verdict: Verdict | None, paid: Paid) -> SeatLine:
    """What came of one seat's visit in a wave, and what it cost in the modelled world."""
    number, cost = seat.number, paid.cost
    outcome = wave.outcomes.get(number)
    found, reason = _outcome(wave, number, verdict)
    heard = None if number in wave.unheard else outcome
    return SeatLine(
        seat=number,
        edge_round=wave.stage.edge_round,
        wave=wave.stage.wave,
        outcome=found,
        reason=reason,
        label=verdict.label if verdict else None,
        n_samples=outcome.n_samples if outcome else 0,
        work_share=wave.shares.get(number, 1.0),
        train=heard.train if heard else None,
        received=outcome.received if outcome else None,
        own=outcome.own if outcome else None,
        own_on=outcome.own_on if outcome else {},
        down_bytes=paid.use.down_bytes,
        up_bytes=paid.use.up_bytes,
        report_bytes=paid.report_bytes,
        moved_bytes=_moved_bytes(wave, number, paid),
        begin_s=wave.began_s,
        down_s=cost.down_s,
        compute_s=cost.compute_s,
        wait_s=cost.wait_s,
        up_s=cost.up_s,
        simulated_s=cost.simulated_s,
        predicted_s=wave.predicted.get(number, (None, None))[0],
        measured_s=wave.measured.get(number),
        energy_j=cost.energy_j,
        fresh_state=outcome.fresh_state if outcome else False,
        figures={**(heard.figures if heard else {}), **(verdict.figures if verdict else {})},
    )


def _outcome(wave: Wave, number: int, verdict: Verdict | None) -> tuple[str, str | None]:
    """The word for a visit in the record, and the reason where there is one."""
    outcome, failure = wave.outcomes.get(number), wave.failed().get(number)
    if failure is None and number in wave.refused:
        return "refused", wave.refused[number].reason
    if failure is not None or outcome is None:
        return "failed", failure.reason if failure else "error"
    if outcome.kind == "evaluate":
        return "evaluated", None
    if verdict is not None and not verdict.upload:
        return "refused", verdict.reason
    if outcome.kind == "collect":
        return "collected", None
    return ("used", None) if number in wave.used else ("idle", "no update")


def _moved_bytes(wave: Wave, number: int, paid: Paid) -> int:
    """Of the bytes that the seat received, those of moved samples: they follow its order."""
    moved = wave.moved_bytes.get(number, 0)
    order = wave.links[number].down_bytes - moved if number in wave.links else 0
    return min(max(paid.use.down_bytes - order, 0), moved)
