"""The timeline of a round, which explains its stragglers: what each visit spent its time on, and how it ended."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from shared.core.formatting import counted, duration, natural
from shared.plots.picture import Axis, Line, Mark, Picture, Span, Spans
from shared.run_records.rounds import EdgeRow, RoundDetail, last_edge
from shared.run_records.runs import SeatInfo, device_name
from shared.run_records.visits import ENDS, PARTS, VisitRow, end_of

WHATS = ("download", "compute", "wait", "upload", "cloud to edge", "edge to cloud")
"""What time is spent on: by devices, then by edges."""
COUNTS_LATER, DECIDES = "counts later", "decides the end"
MARKS = (*ENDS, COUNTS_LATER, DECIDES)
"""What is marked where a visit ends; each has a shape of its own."""
LATER = 8
"""Versions after the shown one whose visits are looked through for those that were in flight."""
_SAME = 1e-6
"""Relative difference of instants that are the same but for rounding."""
_MAX_LIMITS = 12
"""Deadlines of an edge that are drawn: with more edge rounds than this, only the first and the last one."""
SeatAt = tuple[str, int]
"""An edge's name and a seat's number."""


class Drawn(NamedTuple):
    """A visit as it is drawn: cut off where it was in flight; its end is one of `MARKS`."""

    visit: VisitRow
    end: str
    note: str

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.visit.begin_s + self.visit.simulated_s

    @property
    def at(self) -> SeatAt:
        """Its row."""
        return self.visit.edge, self.visit.seat


class Decider(NamedTuple):
    """What a round's end waited for: a visit, or without one the deadline, and then the edge's link to the cloud."""

    edge: EdgeRow
    drawn: Drawn | None
    missing: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """The same as a sentence."""
        edge = self.edge
        down = [f"cloud to {edge.edge} {duration(edge.down_s)}"] if edge.down_s else []
        up = f", then {edge.edge} to the cloud {duration(edge.up_s)}" if edge.up_s else ""
        if self.drawn is None:
            way = f": {down[0]}" if down else ""
            return f"The deadline at {edge.edge} decided the end ({self.missing}){way}{up}."
        who = self.name.capitalize()
        return f"{who} at {edge.edge} decided the end: {', '.join([*down, *_parts(self.drawn.visit)])}{up}."


@dataclass(frozen=True)
class RoundTimeline:
    """The visits of a round over simulated time.

    Time begins with the round. Where tiers are asynchronous it begins with the first of the visits, which may have been
    dispatched in an earlier round, and visits that were in flight when the version was made are cut off there.

    Attributes:
        row: the round.
        later: the rounds after it, which know the visits that were in flight.
        word: what a round is called.
        deadline_s: simulated seconds after which an edge round ends.
        report_deadline_s: simulated seconds of an edge round after which an edge decides by the reports that it has.
        placed: what is known of the seats, by number.
    """

    row: RoundDetail
    later: Sequence[RoundDetail] = ()
    word: str = "round"
    deadline_s: float | None = None
    report_deadline_s: float | None = None
    placed: Mapping[int, SeatInfo] = field(default_factory=dict)

    @cached_property
    def drawn(self) -> list[Drawn]:
        """The visits that took any time."""
        own = [
            Drawn(visit, end_of(visit.outcome, visit.reason), self._note(visit))
            for visit in self.row.seats
            if visit.simulated_s > 0
        ]
        return own + self._in_flight() if own else []

    def seats(self, *, slowest_first: bool = False) -> list[SeatAt]:
        """The seats with a visit, each at its edge: in the order of their numbers, or of the time of their visits."""
        took: dict[SeatAt, float] = defaultdict(float)
        for each in self.drawn:
            took[each.at] += each.visit.simulated_s
        order = sorted(took, key=lambda at: (natural(at[0]), at[1]))
        return sorted(order, key=lambda at: -took[at]) if slowest_first else order

    @cached_property
    def decider(self) -> Decider | None:
        """What decided when the round ended; None if its record does not say it."""
        edge = last_edge(self.row.edges)
        if edge is None or not self.drawn:
            return None
        last = [each for each in self.drawn if each.visit.edge == edge.edge and _same(each.end_s, done_s(edge))]
        waited_for = [each for each in last if each.end not in ("late", "surplus", COUNTS_LATER)]
        if waited_for:
            return Decider(edge, waited_for[0], name=self._name(waited_for[0].visit.seat))
        if self.deadline_s is None and self.report_deadline_s is None:
            return None
        found = Counter(each.end for each in self.drawn if each.visit.edge == edge.edge)
        missing = ", ".join(f"{found[end]} {end}" for end in ENDS if end not in ("used", "only tested") and found[end])
        return Decider(edge, None, missing or "a task was unanswered")

    def picture(
        self, title: str, *, slowest_first: bool = False, first: int = 0, most: int | None = None
    ) -> Picture | None:
        """A row for each seat with all its visits, and one for each of their edges; None if no visit took any time.

        Args:
            title: of the picture.
            slowest_first: whether the seat whose visits took the longest is in the first row.
            first: number of seats before the first one that is shown.
            most: number of seats that are shown at most; None means all.
        """
        seats = self.seats(slowest_first=slowest_first)[first:][:most]
        if not seats:
            return None
        before_s = max(-min(each.visit.begin_s for each in self.drawn), 0.0)
        rows = _rows(seats, [edge for edge in self.row.edges if edge.down_s + edge.up_s > 0], slowest_first)
        place = {at: number for number, at in enumerate(rows)}
        shown = [each for each in self.drawn if each.at in place]
        spans = [span for each in shown for span in _spans(each, before_s, place[each.at])]
        spans += [span for edge in self.row.edges for span in _link_spans(edge, before_s, place.get((edge.edge, None)))]
        since = "since the first task began" if before_s else f"in the {self.word}"
        panel = Spans(
            x=Axis(label=f"simulated time {since}", unit="seconds", from_zero=True),
            rows=tuple(f"{edge} and cloud" if seat is None else f"{self._name(seat)} · {edge}" for edge, seat in rows),
            whats=WHATS,
            spans=tuple(spans),
            marked=MARKS,
            marks=tuple(self._marks(shown, place, before_s)),
            lines=tuple(self._lines(before_s, rows)),
        )
        return Picture(name="timeline", title=title, panels=(panel,))

    def _marks(self, shown: Sequence[Drawn], place: dict[tuple[str, int | None], int], before_s: float) -> list[Mark]:
        marks = [Mark(row=place[each.at], at=before_s + each.end_s, what=each.end, note=each.note) for each in shown]
        if self.decider is not None and (last := self.decider.drawn) in shown and last is not None:
            marks.append(
                Mark(row=place[last.at], at=before_s + last.end_s, what=DECIDES, note=f"decided the {self.word}'s end")
            )
        return marks

    def _lines(self, before_s: float, rows: Sequence[tuple[str, int | None]]) -> list[Line]:
        """The instants at which the round began and ended, and the deadlines of its edge rounds across their rows."""
        lines = [Line(at=before_s, name=f"the {self.word} begins")] if before_s else []
        if self.row.simulated_s > 0:
            lines.append(Line(at=before_s + self.row.simulated_s, name=f"the {self.word} ends"))
        for name, limit_s in (("deadline", self.deadline_s), ("reports due", self.report_deadline_s)):
            if limit_s is not None:
                begins = sorted(self._begins({edge for edge, _ in rows}).items(), key=itemgetter(0))
                lines += [_limit(before_s + begin + limit_s, name, edges, rows) for begin, edges in begins]
        return lines

    def _begins(self, edges: AbstractSet[str]) -> dict[float, set[str]]:
        """The instants at which edge rounds began, each once, with the edges of which they are."""
        begins: dict[tuple[str, int], float] = defaultdict(lambda: math.inf)
        for visit in self.row.seats:
            if visit.outcome != "used_late" and visit.edge in edges:
                key = visit.edge, visit.edge_round
                begins[key] = min(begins[key], visit.begin_s)
        by_edge: dict[str, list[float]] = defaultdict(list)
        for (edge, _), begin in sorted(begins.items()):
            by_edge[edge].append(begin)
        found: dict[float, set[str]] = {}
        for edge, own in by_edge.items():
            for begin in own if len(own) <= _MAX_LIMITS else (own[0], own[-1]):
                same = next((each for each in found if _same(each, begin)), begin)
                found.setdefault(same, set()).add(edge)
        return found

    def _in_flight(self) -> list[Drawn]:
        """Visits that had begun when the round ended and count in a later one, cut off there."""
        found, until_s = [], self.row.simulated_s
        ends_s = accumulate(detail.simulated_s for detail in (self.row, *self.later))
        for detail, began_s in zip(self.later, ends_s, strict=False):
            for visit in detail.seats:
                begin_s = began_s + visit.begin_s
                if visit.simulated_s > 0 and begin_s < until_s:
                    note = self._note(visit, f"counts in {self.word} {detail.round_no}: ")
                    found.append(Drawn(_cut(visit, begin_s, until_s), COUNTS_LATER, note))
        return found

    def _name(self, seat: int) -> str:
        return device_name(seat, self.placed.get(seat))

    def _note(self, visit: VisitRow, counts: str = "") -> str:
        """A visit in three lines: whose, what it spent its time on, how it ended."""
        seat = self.placed.get(visit.seat)
        what = ", ".join(filter(None, (visit.profile, "straggler" if seat and seat.straggler else "")))
        who = f"{self._name(visit.seat)} at {visit.edge}" + (f": {what}" if what else "")
        return "\n".join((who, ", ".join(_parts(visit)), counts + _how(visit)))


def _limit(at: float, name: str, edges: AbstractSet[str], rows: Sequence[tuple[str, int | None]]) -> Line:
    """A deadline across the rows of the edges that have it; without rows if these are all."""
    own = tuple(number for number, (edge, _) in enumerate(rows) if edge in edges)
    return Line(at=at, name=name, limit=True, rows=own if len(own) < len(rows) else ())


def done_s(edge: EdgeRow) -> float:
    """When an edge began to send its update to the cloud."""
    return edge.begin_s + edge.simulated_s - edge.up_s


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME, abs_tol=_SAME)


def _rows(seats: Sequence[SeatAt], edges: Sequence[EdgeRow], slowest_first: bool) -> list[tuple[str, int | None]]:
    """The rows: of each edge with a link before those of its seats, or, by their ends, of all edges first."""
    there = dict.fromkeys(edge for edge, _ in seats)
    by_end = sorted((edge for edge in edges if edge.edge in there), key=lambda edge: -(edge.begin_s + edge.simulated_s))
    if slowest_first:
        return [*((edge.edge, None) for edge in by_end), *seats]
    linked = {edge.edge for edge in by_end}
    rows: list[tuple[str, int | None]] = []
    for name in there:
        rows += [(name, None)] if name in linked else []
        rows += [at for at in seats if at[0] == name]
    return rows


def _cut(visit: VisitRow, begin_s: float, end_s: float) -> VisitRow:
    """A visit that begins at an instant, up to another one."""
    left_s, parts = end_s - begin_s, {}
    for _, name in PARTS:
        parts[name] = min(getattr(visit, name), left_s)
        left_s -= parts[name]
    return visit.model_copy(update={"begin_s": begin_s, "simulated_s": sum(parts.values()), **parts})


def _spans(each: Drawn, before_s: float, at: int) -> list[Span]:
    found, begin = [], before_s + each.visit.begin_s
    for what, name in PARTS:
        end = begin + getattr(each.visit, name)
        if end > begin:
            found.append(Span(row=at, what=what, begin=begin, end=end, note=each.note))
        begin = end
    return found


def _link_spans(edge: EdgeRow, before_s: float, at: int | None) -> list[Span]:
    """The edge's two ways over its link to the cloud, if its row is shown."""
    begin, done = before_s + edge.begin_s, before_s + done_s(edge)
    ways = (("cloud to edge", begin, edge.down_s), ("edge to cloud", done, edge.up_s))
    return [
        Span(row=at, what=what, begin=starts, end=starts + lasts, note=f"{edge.edge}: {what} {duration(lasts)}")
        for what, starts, lasts in ways
        if at is not None and lasts > 0
    ]


def _parts(visit: VisitRow) -> list[str]:
    """What a visit spent its time on."""
    return [f"{part} {duration(s)}" for part, name in PARTS if (s := getattr(visit, name)) > 0]


def _how(visit: VisitRow) -> str:
    """How a visit ended, and which one it was."""
    end = end_of(visit.outcome, visit.reason)
    reason = visit.reason if visit.reason != end else None
    old = f"{counted(visit.staleness, 'version')} old" if visit.staleness else None
    again = f"edge round {visit.edge_round + 1}, dispatch {visit.wave + 1}" if visit.edge_round or visit.wave else ""
    return ", ".join(filter(None, (end, old, reason, visit.label and f"class {visit.label}", again)))
