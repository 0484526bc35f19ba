"""The timeline of a round, which shows its stragglers."""

from __future__ import annotations

from collections.abc import Sequence

from shared.plots.picture import Axis, Picture, Span, Spans
from shared.run_records.rounds import RoundDetail
from shared.run_records.visits import VisitRow

WHATS = ("download", "compute", "wait", "upload")
_PARTS = (("download", "down_s"), ("compute", "compute_s"), ("wait", "wait_s"), ("upload", "up_s"))
_WORDS = {"used": "", "used_late": "late update used", "evaluated": "only tested"}


def timeline(row: RoundDetail, title: str) -> Picture | None:
    """The visits of a round as spans of simulated time, a row for each seat, by edge; None where none took time.

    A visit that was broken off ends there. All visits of a seat (edge rounds, waves) are in its row. Where tiers are
    asynchronous, time begins with the first of these visits, which may have been dispatched in an earlier round.
    """
    visits = [visit for visit in row.seats if visit.simulated_s > 0]
    if not visits:
        return None
    seats = sorted({(visit.edge, visit.seat) for visit in visits})
    place = {key: number for number, key in enumerate(seats)}
    before_s = max(-min(visit.begin_s for visit in visits), 0.0)
    spans = [span for visit in visits for span in _spans(visit, before_s, place[visit.edge, visit.seat])]
    ends = [
        (before_s + edge.begin_s + edge.simulated_s - edge.up_s, f"{edge.edge} done")
        for edge in row.edges
        if edge.simulated_s > 0
    ]
    ends += [(before_s, "the round begins")] if before_s else []
    since = "since the first visit began" if before_s else "in the round"
    panel = Spans(
        x=Axis(label=f"simulated time {since}", unit="seconds", from_zero=True),
        rows=tuple(f"seat {seat} · {edge}" for edge, seat in seats),
        whats=WHATS,
        spans=tuple(spans),
        ends=tuple(ends),
    )
    return Picture(name="timeline", title=title, panels=(panel,))


def _spans(visit: VisitRow, before_s: float, at: int) -> Sequence[Span]:
    found, begin = [], before_s + visit.begin_s
    for what, name in _PARTS:
        end = begin + getattr(visit, name)
        if end > begin:
            found.append(Span(row=at, what=what, begin=begin, end=end, note=_note(visit)))
        begin = end
    return found


def _note(visit: VisitRow) -> str:
    word = _WORDS.get(visit.outcome, visit.outcome)
    old = f"{visit.staleness} version{'s' if visit.staleness > 1 else ''} old" if visit.staleness else None
    parts = (word, old, visit.reason, visit.label and f"class {visit.label}", visit.profile)
    again = f"edge round {visit.edge_round + 1}, wave {visit.wave + 1}" if visit.edge_round or visit.wave else ""
    return ", ".join(str(part) for part in (*parts, again) if part)
