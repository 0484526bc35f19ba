"""The timeline of a round, which shows its stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from shared.plots.picture import Axis, Picture, Span, Spans
from shared.run_records.rounds import RoundDetail
from shared.run_records.visits import VisitRow

WHATS = ("download", "compute", "wait", "upload")
_PARTS = (("download", "down_s"), ("compute", "compute_s"), ("wait", "wait_s"), ("upload", "up_s"))
LATER = 8
"""Versions after the shown one whose visits are looked through for those that were in flight."""
_WORDS = {"used": "", "used_late": "late update used", "evaluated": "only tested"}


def timeline(row: RoundDetail, title: str, later: Sequence[RoundDetail] = (), word: str = "round") -> Picture | None:
    """The visits of a round as spans of simulated time, a row for each seat, by edge; None where none took time.

    A visit that was broken off ends there. All visits of a seat (edge rounds, waves) are in its row. Where tiers are
    asynchronous, time begins with the first of these visits, which may have been dispatched in an earlier round, and
    visits that were in flight when the version was made are drawn up to that instant.

    Args:
        row: the round.
        title: of the picture.
        later: the rounds after it, which know the visits that were in flight.
        word: what a round is called.
    """
    visits = [(visit, _note(visit)) for visit in row.seats if visit.simulated_s > 0]
    if not visits:
        return None
    in_flight = _in_flight(row, later, word)
    visits += in_flight
    seats = sorted({(visit.edge, visit.seat) for visit, _ in visits})
    place = {key: number for number, key in enumerate(seats)}
    before_s = max(-min(visit.begin_s for visit, _ in visits), 0.0)
    spans = [span for visit, note in visits for span in _spans(visit, note, before_s, place[visit.edge, visit.seat])]
    ends = [
        (before_s + edge.begin_s + edge.simulated_s - edge.up_s, f"{edge.edge} done")
        for edge in row.edges
        if edge.simulated_s > 0
    ]
    ends += [(before_s, f"the {word} begins")] if before_s else []
    ends += [(before_s + row.simulated_s, f"the {word} is made")] if in_flight else []
    since = "since the first visit began" if before_s else f"in the {word}"
    panel = Spans(
        x=Axis(label=f"simulated time {since}", unit="seconds", from_zero=True),
        rows=tuple(f"seat {seat} · {edge}" for edge, seat in seats),
        whats=WHATS,
        spans=tuple(spans),
        ends=tuple(ends),
    )
    return Picture(name="timeline", title=title, panels=(panel,))


def _in_flight(row: RoundDetail, later: Sequence[RoundDetail], word: str) -> list[tuple[VisitRow, str]]:
    """Visits of later rounds that had begun when a round ended, cut off there, with their notes."""
    found = []
    ends_s = accumulate(detail.simulated_s for detail in (row, *later))
    for detail, began_s in zip(later, ends_s, strict=False):
        for visit in detail.seats:
            begin_s = began_s + visit.begin_s
            if visit.simulated_s > 0 and begin_s < row.simulated_s:
                note = f"in flight, ends in {word} {detail.round_no}: {_note(visit) or 'used'}"
                found.append((_cut(visit, begin_s, row.simulated_s), note))
    return found


def _cut(visit: VisitRow, begin_s: float, end_s: float) -> VisitRow:
    """A visit that begins at an instant, up to another one."""
    left_s, parts = end_s - begin_s, {}
    for _, name in _PARTS:
        parts[name] = min(getattr(visit, name), left_s)
        left_s -= parts[name]
    return visit.model_copy(update={"begin_s": begin_s, **parts})


def _spans(visit: VisitRow, note: str, before_s: float, at: int) -> Sequence[Span]:
    found, begin = [], before_s + visit.begin_s
    for what, name in _PARTS:
        end = begin + getattr(visit, name)
        if end > begin:
            found.append(Span(row=at, what=what, begin=begin, end=end, note=note))
        begin = end
    return found


def _note(visit: VisitRow) -> str:
    word = _WORDS.get(visit.outcome, visit.outcome)
    old = f"{visit.staleness} version{'s' if visit.staleness > 1 else ''} old" if visit.staleness else None
    parts = (word, old, visit.reason, visit.label and f"class {visit.label}", visit.profile)
    again = f"edge round {visit.edge_round + 1}, wave {visit.wave + 1}" if visit.edge_round or visit.wave else ""
    return ", ".join(str(part) for part in (*parts, again) if part)
