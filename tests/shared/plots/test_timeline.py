"""The timeline of a round: parts of visits in sequence, how visits ended, deadlines, and what decided the end."""

from __future__ import annotations

from typing import Any

import pytest

from shared.plots.picture import Spans
from shared.plots.timeline import DECIDES, RoundTimeline
from shared.run_records.rounds import EdgeRow
from tests.strata.samples import a_round, a_seat

PARTS = ("down_s", "compute_s", "wait_s", "up_s")


def visit(seat: int, edge: str = "edge-1", outcome: str = "used", **changes: Any) -> dict[str, Any]:
    """A visit that lasts as long as its parts."""
    return {
        "seat": seat,
        "edge": edge,
        "outcome": outcome,
        "simulated_s": sum(changes.get(part, 0) for part in PARTS),
        **changes,
    }


def edge(name: str = "edge-1", **changes: Any) -> dict[str, Any]:
    return {"edge": name, "home": 0, "outcome": "used", **changes}


def panel_of(timeline: RoundTimeline, **how: Any) -> Spans:
    picture = timeline.picture("a round", **how)
    assert picture is not None
    (panel,) = picture.panels
    assert isinstance(panel, Spans)
    return panel


def drawn(panel: Spans) -> list[tuple[str, str, float, float]]:
    return [(panel.rows[span.row], span.what, span.begin, span.end) for span in panel.spans]


def ends(panel: Spans) -> list[tuple[str, str, float]]:
    return [(panel.rows[mark.row], mark.what, mark.at) for mark in panel.marks]


def test_the_parts_of_a_visit_are_drawn_in_sequence_between_the_links_of_its_edge() -> None:
    seats = [
        visit(1, begin_s=2, down_s=1, compute_s=3, up_s=0.5),
        visit(0, "edge-2", "refused", label="C", begin_s=2, compute_s=9, wait_s=1),
        visit(1, wave=1, begin_s=12, compute_s=1),
        visit(5, outcome="failed"),
    ]
    edges = [edge(down_s=2, up_s=4, simulated_s=17)]
    row = a_round(1, seats=seats, edges=edges, simulated_s=17)
    panel = panel_of(RoundTimeline(row))
    assert panel.rows == ("edge-1 and cloud", "device 1 · edge-1", "device 0 · edge-2")
    assert drawn(panel) == [
        ("device 1 · edge-1", "download", 2, 3),
        ("device 1 · edge-1", "compute", 3, 6),
        ("device 1 · edge-1", "upload", 6, 6.5),
        ("device 0 · edge-2", "compute", 2, 11),
        ("device 0 · edge-2", "wait", 11, 12),
        ("device 1 · edge-1", "compute", 12, 13),
        ("edge-1 and cloud", "cloud to edge", 0, 2),
        ("edge-1 and cloud", "edge to cloud", 13, 17),
    ]
    assert "refused, class C" in panel.spans[3].note
    assert "dispatch 2" in panel.spans[5].note
    assert max(span.end for span in panel.spans) == row.simulated_s == panel.lines[-1].at, "as the header says"
    assert RoundTimeline(a_round(1, seats=seats[3:])).picture("nobody") is None


def test_every_end_of_a_visit_has_its_own_mark() -> None:
    seats = [
        visit(0, compute_s=1),
        visit(1, outcome="refused", reason="late", compute_s=2),
        visit(2, outcome="refused", reason="surplus", compute_s=3),
        visit(3, outcome="refused", reason="too far", compute_s=4),
        visit(4, outcome="failed", reason="dropped", compute_s=5),
        visit(5, outcome="failed", reason="timeout", compute_s=6),
    ]
    found = ends(panel_of(RoundTimeline(a_round(1, seats=seats, edges=[]))))
    assert [what for _, what, _ in found] == ["used", "late", "surplus", "refused", "dropped", "failed"]
    assert [at for *_, at in found] == [1, 2, 3, 4, 5, 6]


def test_seats_are_in_the_order_of_numbers_or_slowest_first_and_paged() -> None:
    seats = [visit(seat, f"edge-{name}", compute_s=took) for seat, name, took in ((11, 10, 1), (2, 2, 3), (10, 2, 9))]
    timeline = RoundTimeline(a_round(1, seats=seats, edges=[edge("edge-2", up_s=1, simulated_s=10)]))
    assert timeline.seats() == [("edge-2", 2), ("edge-2", 10), ("edge-10", 11)]
    assert timeline.seats(slowest_first=True) == [("edge-2", 10), ("edge-2", 2), ("edge-10", 11)]
    assert panel_of(timeline, first=2, most=2).rows == ("device 11 · edge-10",)
    assert panel_of(timeline, slowest_first=True, most=1).rows == ("edge-2 and cloud", "device 10 · edge-2")
    assert timeline.picture("beyond", first=3) is None


def test_the_visit_that_the_slowest_edge_waited_for_is_ringed_and_named() -> None:
    seats = [visit(3, down_s=1, compute_s=2), visit(4, "edge-2", down_s=1, compute_s=6, up_s=0.5)]
    edges = [edge(down_s=0.5, up_s=9, simulated_s=12), edge("edge-2", up_s=3, simulated_s=10.5)]
    timeline = RoundTimeline(a_round(1, seats=seats, edges=edges))
    assert (DECIDES, 3) in [mark[1:] for mark in ends(panel_of(timeline))], "edge-1 is the last to reach the cloud"
    assert timeline.decider is not None
    parts = "cloud to edge-1 0.5 s, download 1.0 s, compute 2.0 s"
    text = f"Device 3 at edge-1 decided the end: {parts}, then edge-1 to the cloud 9.0 s."
    assert timeline.decider.text == text
    later = RoundTimeline(a_round(1, seats=seats, edges=[edges[0], edge("edge-2", up_s=5, simulated_s=12.5)]))
    assert ("device 4 · edge-2", DECIDES, 7.5) in ends(panel_of(later))


def test_a_deadline_that_ended_the_round_is_named_with_what_was_missing() -> None:
    seats = [
        visit(0, down_s=1, compute_s=1),
        visit(1, outcome="refused", reason="late", down_s=1, compute_s=4),
        visit(2, outcome="failed", reason="dropped", down_s=1),
        visit(0, edge_round=1, begin_s=5, compute_s=1),
    ]
    row = a_round(1, seats=seats[:3], edges=[edge(simulated_s=5)], simulated_s=5.0)
    timeline = RoundTimeline(row, deadline_s=5.0)
    assert timeline.decider is not None
    assert timeline.decider.text == "The deadline at edge-1 decided the end (1 late, 1 dropped)."
    linked = RoundTimeline(row.replace(edges=[EdgeRow(**edge(down_s=0.5, up_s=1, simulated_s=5))]), deadline_s=4.0)
    assert linked.decider is not None
    assert linked.decider.text.endswith("1 dropped): cloud to edge-1 0.5 s, then edge-1 to the cloud 1.0 s.")
    assert DECIDES not in [mark.what for mark in panel_of(timeline).marks]
    two = RoundTimeline(row.replace(seats=seats), deadline_s=5.0, report_deadline_s=3.0)
    limits = [(line.at, line.name) for line in panel_of(two).lines if line.limit]
    assert limits == [(5, "deadline"), (10, "deadline"), (3, "reports due"), (8, "reports due")]
    assert [line.name for line in panel_of(RoundTimeline(row)).lines] == ["the round ends"]


def test_timeline_of_asynchronous_tiers_begins_with_its_first_visit() -> None:
    seats = [visit(2, begin_s=-3, compute_s=2), visit(4, begin_s=0.5, compute_s=1, staleness=2)]
    edges = [edge(begin_s=-1.0, simulated_s=3.0, up_s=0.25)]
    panel = panel_of(RoundTimeline(a_round(1, seats=seats, edges=edges, simulated_s=2.0)))
    assert drawn(panel) == [
        ("device 2 · edge-1", "compute", 0, 2),
        ("device 4 · edge-1", "compute", 3.5, 4.5),
        ("edge-1 and cloud", "edge to cloud", 4.75, 5.0),
    ]
    assert [(line.at, line.name) for line in panel.lines] == [(3.0, "the round begins"), (5.0, "the round ends")]
    assert panel.x.label == "simulated time since the first task began"
    assert "2 versions old" in panel.spans[1].note


def test_timeline_of_a_version_shows_what_was_in_flight_when_it_was_made() -> None:
    def flight(seat: int, begin_s: float, compute_s: float, staleness: int = 0) -> dict[str, Any]:
        return visit(seat, begin_s=begin_s, compute_s=compute_s, up_s=1.0, staleness=staleness)

    row = a_round(3, seats=[flight(0, 0.0, 4.0)], simulated_s=5.0)
    later = [
        a_round(4, seats=[flight(1, -3.0, 3.5, 1), flight(0, 0.0, 1.0)], simulated_s=2.0),
        a_round(5, seats=[flight(2, -8.5, 6.0, 2), flight(1, -1.0, 1.0)], simulated_s=1.0),
    ]
    panel = panel_of(RoundTimeline(row, later, "version"))
    before = 1.5  # the first visit began so long before the version
    assert drawn(panel) == [
        ("device 0 · edge-1", "compute", before, before + 4.0),
        ("device 0 · edge-1", "upload", before + 4.0, before + 5.0),
        ("device 1 · edge-1", "compute", before + 2.0, before + 5.0),
        ("device 2 · edge-1", "compute", 0.0, 6.0),
        ("device 2 · edge-1", "upload", 6.0, 6.5),
    ]
    assert [what for _, what, _ in ends(panel)] == ["used", "counts later", "counts later"]
    assert panel.spans[2].note.splitlines()[-1] == "counts in version 4: used, 1 version old"
    assert [(line.at, line.name) for line in panel.lines] == [(1.5, "the version begins"), (6.5, "the version ends")]


@pytest.mark.parametrize("n_edges", [1, 40])
def test_deadlines_of_many_edges_cross_the_rows_of_these_edges_only(n_edges: int) -> None:
    seats = [visit(seat, f"edge-{seat}", begin_s=seat, compute_s=1) for seat in range(n_edges)]
    panel = panel_of(RoundTimeline(a_round(1, seats=seats, edges=[]), deadline_s=7.0))
    found = [(line.at, [panel.rows[row] for row in line.rows]) for line in panel.lines if line.limit]
    of_one = [] if n_edges == 1 else [[f"device {seat} · edge-{seat}"] for seat in range(n_edges)]
    assert found == [(7.0 + seat, of_one[seat] if of_one else []) for seat in range(n_edges)]


def test_equal_deadlines_are_one_line_and_of_many_edge_rounds_the_first_and_last_are_drawn() -> None:
    seats = [visit(seat, f"edge-{seat}", compute_s=1) for seat in range(3)]
    panel = panel_of(RoundTimeline(a_round(1, seats=seats, edges=[]), deadline_s=7.0))
    assert [(line.at, line.rows) for line in panel.lines if line.limit] == [(7.0, ())]
    seats = [visit(0, edge_round=number, begin_s=number, compute_s=1) for number in range(40)]
    panel = panel_of(RoundTimeline(a_round(1, seats=seats, edges=[]), deadline_s=7.0))
    assert [line.at for line in panel.lines if line.limit] == [7.0, 46.0]


def test_the_slowest_is_the_device_whose_visits_took_longest_not_the_one_that_ended_last() -> None:
    seats = [visit(1, begin_s=3, compute_s=1), visit(3, compute_s=2), visit(2, compute_s=1.5)]
    assert [seat for _, seat in RoundTimeline(a_round(1, seats=seats)).seats(slowest_first=True)] == [3, 2, 1]


def test_a_visit_says_whose_it_is_its_parts_and_its_end_each_once() -> None:
    seats = [visit(3, down_s=0.25, compute_s=5e-5, profile="jetson"), visit(4, up_s=1)]
    placed = {3: a_seat(3, straggler=True), 4: a_seat(4, role="worker")}
    panel = panel_of(RoundTimeline(a_round(1, seats=seats, edges=[]), placed=placed))
    assert panel.rows == ("device 3 · edge-1", "worker 4 · edge-1")
    note = "device 3 at edge-1: jetson, straggler\ndownload 0.25 s, compute < 1 ms\nused"
    assert {span.note for span in panel.spans if span.row == 0} == {note} == {panel.marks[0].note}
