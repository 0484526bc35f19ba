"""The pictures of a run show the numbers of its record at the right positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from shared.core.scores import Spread
from shared.plots.algorithm_pictures import figure_by_client, labels_by_round
from shared.plots.curves import bytes_on_links, clients, scores
from shared.plots.groups import dendrogram
from shared.plots.history import RunHistory, VisitSummary
from shared.plots.partition import partition
from shared.plots.picture import Bars, Boxes, Cells, Lines, Spans, Tree
from shared.plots.timeline import timeline
from shared.results.manifest import Manifest
from shared.results.matplotlib_figures import SCREEN
from shared.results.report.figures import write_pictures
from shared.results.writer import write_results
from shared.run_records.rounds import Evaluation
from tests.strata.samples import a_round, a_run, a_seat


def history_of(*rounds, visits=()) -> RunHistory:
    return RunHistory(a_run(), rounds, tuple(visits))


def lines_of(panel: object) -> Lines:
    assert isinstance(panel, Lines)
    return panel


def boxes_of(panel: object) -> Boxes:
    assert isinstance(panel, Boxes)
    return panel


def test_accuracy_is_drawn_at_evaluated_rounds_for_each_measure() -> None:
    score = {"global": Evaluation(n=10, accuracy=0.8, loss=0.4)}
    run = history_of(a_round(1, evaluation=None), a_round(2, evaluation=score), a_round(2, kind="evaluate"))
    found = {by: scores(run, by) for by in ("round", "time", "bytes")}
    panels = {by: [lines_of(panel) for panel in picture.panels] for by, picture in found.items() if picture}
    lines = {by: [(s.name, s.x, s.y) for s in both[0].series] for by, both in panels.items()}
    assert lines["round"] == [("global model", (2,), (0.8,)), ("mean over clients", (1, 2), (0.6, 0.7))]
    assert lines["time"][1:] == [("mean over clients", (4, 8), (0.6, 0.7))]
    assert lines["bytes"][:1] == [("global model", (4400,), (0.8,))]
    losses = [(s.name, s.y) for s in panels["round"][1].series]
    assert losses == [("global model", (0.4,)), ("training", (1.0, 0.5))]


def test_run_without_rounds_has_no_pictures() -> None:
    assert scores(history_of()) is None
    assert scores(history_of(a_round(1, evaluation=None, train_loss=None, client_accuracy=None))) is None
    assert bytes_on_links(history_of()) is None
    assert clients(history_of()) is None
    assert dendrogram(history_of()) == ()


def test_bytes_by_link_and_direction() -> None:
    picture = bytes_on_links(history_of(a_round(1), a_round(2, device_bytes_up=7)))
    assert picture is not None
    (panel,) = picture.panels
    assert isinstance(panel, Lines)
    assert {s.name: (s.colour, s.dash, s.y) for s in panel.series} == {
        "devices to edges": (0, 0, (150, 7)),
        "edges to devices": (0, 1, (1500, 1500)),
        "edges to cloud": (1, 0, (50, 50)),
        "cloud to edges": (1, 1, (500, 500)),
    }


def test_clients_as_bands_by_round_and_boxes_at_the_end() -> None:
    early, late = Spread.of([0.1, 0.2, 0.6]), Spread.of([0.5, 0.7, 0.9])
    rounds = (
        a_round(1, clients={"own": early, "received": early}),
        a_round(2, clients={"own": late, "received": early}),
        a_round(2, kind="evaluate", clients={"own": late, "received": early}),
    )
    picture = clients(history_of(*rounds))
    assert picture is not None
    course, ends = picture.panels
    whole, half, mean = lines_of(course).series
    assert (whole.low, whole.high) == ((0.1, 0.5), (0.6, 0.9))
    assert half.low == pytest.approx((0.15, 0.6))
    assert half.high == pytest.approx((0.4, 0.8))
    assert mean.y == pytest.approx((0.3, 0.7))
    own, received = boxes_of(ends).boxes
    assert (own.name, received.name) == ("local model", "received model")
    assert (own.median, received.median) == pytest.approx((0.7, 0.2))
    same = a_round(2, kind="evaluate", clients={"own": late, "received": late})
    again = clients(history_of(*rounds[:2], same))
    assert again is not None
    assert [box.name for box in boxes_of(again.panels[1]).boxes] == ["local model"]


def test_partition_has_a_column_for_each_seat_that_holds_samples() -> None:
    seats = [a_seat(0, label_counts=(3, 0)), a_seat(1, label_counts=(1, 2, 4)), a_seat(2, label_counts=())]
    picture = partition(seats, "who has what")
    assert picture is not None
    totals, heat = picture.panels
    assert isinstance(totals, Bars)
    assert isinstance(heat, Cells)
    assert list(totals.names) == ["0", "1"]
    assert list(totals.series[0].y) == [3, 7]
    assert [list(row) for row in heat.values] == [[3, 1], [None, 2], [None, 4]]
    assert partition([a_seat(2, label_counts=())], "") is None


def test_timeline_shows_the_parts_of_a_visit_in_sequence() -> None:
    seats = [
        {"seat": 1, "edge": "edge-1", "outcome": "used", "begin_s": 2, "down_s": 1, "compute_s": 3, "up_s": 0.5},
        {"seat": 0, "edge": "edge-2", "outcome": "refused", "label": "C", "begin_s": 2, "compute_s": 9, "wait_s": 1},
        {"seat": 1, "edge": "edge-1", "outcome": "used", "wave": 1, "begin_s": 12, "compute_s": 1},
        {"seat": 5, "edge": "edge-1", "outcome": "failed"},
    ]
    parts = ("down_s", "compute_s", "wait_s", "up_s")
    rows = [{**seat, "simulated_s": sum(float(str(seat.get(part, 0))) for part in parts)} for seat in seats]
    picture = timeline(a_round(1, seats=rows), "a round")
    assert picture is not None
    (panel,) = picture.panels
    assert isinstance(panel, Spans)
    assert panel.rows == ("seat 1 · edge-1", "seat 0 · edge-2")
    assert [(s.row, s.what, s.begin, s.end) for s in panel.spans] == [
        (0, "download", 2, 3),
        (0, "compute", 3, 6),
        (0, "upload", 6, 6.5),
        (1, "compute", 2, 11),
        (1, "wait", 11, 12),
        (0, "compute", 12, 13),
    ]
    assert "refused, class C" in panel.spans[3].note
    assert "wave 2" in panel.spans[5].note
    assert timeline(a_round(1, seats=rows[3:]), "nobody") is None


def test_timeline_of_asynchronous_tiers_begins_with_its_first_visit() -> None:
    seats = [
        {"seat": 2, "edge": "edge-1", "outcome": "used", "begin_s": -3, "compute_s": 2, "simulated_s": 2},
        {
            "seat": 4,
            "edge": "edge-1",
            "outcome": "used",
            "begin_s": 0.5,
            "compute_s": 1,
            "simulated_s": 1,
            "staleness": 2,
        },
    ]
    edge = {"edge": "edge-1", "home": 0, "outcome": "used", "begin_s": -1.0, "simulated_s": 3.0, "up_s": 0.25}
    picture = timeline(a_round(1, seats=seats, edges=[edge]), "a round")
    assert picture is not None
    (panel,) = picture.panels
    assert isinstance(panel, Spans)
    assert [(span.begin, span.end) for span in panel.spans] == [(0, 2), (3.5, 4.5)]
    assert panel.ends == ((4.75, "edge-1 done"), (3.0, "the round begins"))
    assert panel.x.label == "simulated time since the first visit began"
    assert "2 versions old" in panel.spans[1].note


def test_timeline_of_a_version_shows_what_was_in_flight_when_it_was_made() -> None:
    def visit(seat: int, begin_s: float, compute_s: float, staleness: int = 0) -> dict[str, Any]:
        lasts = {"begin_s": begin_s, "compute_s": compute_s, "up_s": 1.0, "simulated_s": compute_s + 1.0}
        return {"seat": seat, "edge": "edge-1", "outcome": "used", "staleness": staleness, **lasts}

    shown = a_round(3, seats=[visit(0, 0.0, 4.0)], simulated_s=5.0)
    later = [
        a_round(4, seats=[visit(1, -3.0, 3.5, 1), visit(0, 0.0, 1.0)], simulated_s=2.0),
        a_round(5, seats=[visit(2, -8.5, 6.0, 2), visit(1, -1.0, 1.0)], simulated_s=1.0),
    ]
    picture = timeline(shown, "version 3", later, "version")
    assert picture is not None
    (panel,) = picture.panels
    assert isinstance(panel, Spans)
    assert panel.rows == ("seat 0 · edge-1", "seat 1 · edge-1", "seat 2 · edge-1")
    drawn = [(span.row, span.what, span.begin, span.end) for span in panel.spans]
    before = 1.5  # the first visit began so long before the version
    assert drawn == [
        (0, "compute", before, before + 4.0),
        (0, "upload", before + 4.0, before + 5.0),
        (1, "compute", before + 2.0, before + 5.0),
        (2, "compute", 0.0, 6.0),
        (2, "upload", 6.0, 6.5),
    ]
    assert panel.spans[2].note == "in flight, ends in version 4: 1 version old"
    assert panel.ends == ((1.5, "the version begins"), (6.5, "the version is made"))


def test_labels_are_stacked_by_round() -> None:
    pictures = labels_by_round("classes", "classes", ("A", "C"))
    rounds = (a_round(1, labels={"A": 2}), a_round(2, labels={"A": 1, "C": 3}), a_round(2, kind="evaluate"))
    ((panel,),) = (picture.panels for picture in pictures(history_of(*rounds)))
    assert isinstance(panel, Bars)
    assert panel.stacked
    assert panel.names == ("1", "2")
    assert {s.name: s.y for s in panel.series} == {"A": (2, 1), "C": (0, 3)}
    assert pictures(history_of(a_round(1))) == ()


def test_figure_by_client_leaves_missing_values_empty() -> None:
    def visit(seat: int, round_no: int, **figures: float) -> VisitSummary:
        return VisitSummary(round_no, seat, "edge-1", "used", None, figures)

    visits = [visit(0, 1, w=0.2), visit(0, 2, w=0.4), visit(3, 2, w=0.8), visit(3, 1, other=1.0)]
    (picture,) = figure_by_client("mixing", "W", "w", "mean of W")(history_of(a_round(1), visits=visits))
    mean, cells = picture.panels
    assert isinstance(mean, Lines)
    assert isinstance(cells, Cells)
    assert (cells.rows, cells.columns, cells.values) == (("0", "3"), ("1", "2"), ((0.2, 0.4), (None, 0.8)))
    assert mean.series[0].y == pytest.approx((0.2, 0.6))


def test_dendrogram_names_the_group_of_each_leaf() -> None:
    tree = {"users": ["edge-0", "edge-1", "edge-2"], "linkage": [[0, 2, 0.1, 2], [1, 3, 0.9, 3]], "threshold": 0.5}
    (picture,) = dendrogram(history_of(a_round(1, figures={"cloud": tree})))
    (panel,) = picture.panels
    assert isinstance(panel, Tree)
    assert panel.leaves == ("home edge 0 · group 1", "home edge 1 · group 2", "home edge 2 · group 1")
    assert panel.merges == ((0, 2, 0.1, 2), (1, 3, 0.9, 3))


def test_failing_pictures_of_an_algorithm_do_not_prevent_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(history_of: RunHistory) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr("shared.results.reader.pictures_of_algorithm", lambda name: broken)
    info = a_run(run="r9")
    write_results(tmp_path / "r9", info, [a_round(1)], model=None, manifest=Manifest.of(info))
    drawn = write_pictures(tmp_path / "r9", tmp_path / "r9" / "plots", "png", SCREEN)
    assert {"accuracy.png", "bytes.png"} <= {path.name for path in drawn}
