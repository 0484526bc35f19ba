"""The pictures of a run show the numbers of its record at the right positions."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from shared.core.scores import ClassCounts, Spread
from shared.plots.algorithm_pictures import figure_by_client, labels_by_round
from shared.plots.classes import MOST_CLASSES, classes
from shared.plots.curves import bytes_on_links, clients, placed, scores
from shared.plots.groups import dendrogram
from shared.plots.history import RunHistory, VisitSummary
from shared.plots.partition import partition
from shared.plots.picture import Bars, Boxes, Cells, Lines, Tree
from shared.plots.subnetworks import sizes_of
from shared.results.folder import read_rounds
from shared.results.manifest import Manifest
from shared.results.matplotlib_figures import SCREEN
from shared.results.reader import read_history
from shared.results.report.figures import pictures, write_pictures
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


def test_every_line_over_rounds_can_be_drawn_over_another_measure() -> None:
    history = history_of(a_round(1), a_round(2, simulated_s=6.0, wall_s=2.0), a_round(2, kind="evaluate"))
    picture = bytes_on_links(history)
    assert picture is not None
    found = {by: placed(picture, history, by) for by in ("round", "time", "bytes", "wall")}
    places = {by: {series.x for series in lines_of(each.panels[0]).series} for by, each in found.items()}
    assert places == {"round": {(1, 2)}, "time": {(4, 10)}, "bytes": {(2200, 4400)}, "wall": {(0.5, 2.5)}}
    axes = {by: lines_of(each.panels[0]).x for by, each in found.items()}
    assert {by: axis.unit for by, axis in axes.items()} == {
        "round": "", "time": "seconds", "bytes": "bytes", "wall": "seconds"
    }  # fmt: skip
    bars = labels_by_round("classes", "classes", ("A",))(history_of(a_round(1, labels={"A": 2})))[0]
    assert placed(bars, history, "time").panels == bars.panels, "bars have names, not places"


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
    whole, half, median, mean = lines_of(course).series
    assert (whole.low, whole.high) == ((0.1, 0.5), (0.6, 0.9))
    assert half.low == pytest.approx((0.15, 0.6))
    assert half.high == pytest.approx((0.4, 0.8))
    assert mean.y == pytest.approx((0.3, 0.7))
    assert median.y == pytest.approx((0.2, 0.7))
    own, received = boxes_of(ends).boxes
    assert (own.name, received.name) == ("own model after training", "received model")
    assert (own.median, received.median) == pytest.approx((0.7, 0.2))
    same = a_round(2, kind="evaluate", clients={"own": late, "received": late})
    again = clients(history_of(*rounds[:2], same))
    assert again is not None
    assert [box.name for box in boxes_of(again.panels[1]).boxes] == ["received model"]


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
    assert panel.leaves == ("edge 0 · group 1", "edge 1 · group 2", "edge 2 · group 1")
    assert panel.merges == ((0, 2, 0.1, 2), (1, 3, 0.9, 3))


def test_failing_pictures_of_an_algorithm_do_not_prevent_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(history_of: RunHistory) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr("shared.federation.registry.pictures_of_algorithm", lambda name: broken)
    info = a_run(run="r9")
    write_results(tmp_path / "r9", info, [a_round(1)], model=None, manifest=Manifest.of(info))
    drawn = write_pictures(tmp_path / "r9", tmp_path / "r9" / "plots", "png", SCREEN)
    assert {"accuracy.png", "bytes.png"} <= {path.name for path in drawn}


# ---- classes: names, undefined shares, and how many are shown

COUNTS = ClassCounts(
    hits=(3, 0, 0), predictions=(5, 1, 0), targets=(4, 0, 2), confusion=((3, 1, 0), (0, 0, 0), (2, 0, 0))
)


def with_counts(counts: ClassCounts, names: tuple[str, ...] = ()) -> RunHistory:
    rows = (a_round(1), a_round(2).replace(evaluation={"global": Evaluation(n=6, by_class=counts)}))
    return RunHistory(a_run(classes=names), rows)


def test_classes_have_their_names_and_what_is_undefined_is_said_not_drawn_as_zero() -> None:
    picture = classes(with_counts(COUNTS, ("cat", "dog", "eel")))
    assert picture is not None
    bars, cells = picture.panels
    assert isinstance(bars, Bars)
    assert isinstance(cells, Cells)
    assert bars.names == ("cat", "eel (never predicted)")  # no sample is a dog
    assert [series.y for series in bars.series] == [(0.75, 0.0), (0.6, None)]
    assert (cells.rows, cells.columns) == (("eel", "cat"), ("cat", "dog", "eel"))
    assert cells.values == ((100.0, None, None), (75.0, 25.0, None))


@pytest.mark.parametrize(("n_classes", "is_drawn"), [(MOST_CLASSES, True), (MOST_CLASSES + 1, False), (1000, False)])
def test_very_many_classes_are_in_the_table_alone(n_classes: int, is_drawn: bool) -> None:
    ones = (1,) * n_classes
    found = classes(with_counts(ClassCounts(hits=ones, predictions=ones, targets=ones)))
    assert (found is not None) is is_drawn


def test_a_run_without_counts_has_no_picture_of_classes() -> None:
    assert classes(RunHistory(a_run(), (a_round(1),))) is None


# ---- sizes of sub-networks

WHOLE = {"n_weights": {"features.0": 30, "head": 10}, "multiply_adds": {"features.0": 600, "head": 10}}


def cloud_figures(first: float, head: float) -> dict[str, object]:
    """Returns the cloud's figures of a round."""
    means = {
        "n_weights": {"features.0": first, "head": head},
        "multiply_adds": {"features.0": 20 * first, "head": head},
    }
    return {"cloud": {**means, "supernet": WHOLE, "children_won": 2}}


def pictured(folder: Path) -> set[str]:
    """Returns the names of the pictures of a results folder."""
    return {shown.picture.name for shown in pictures(folder, read_history(folder))}


def test_shares_of_the_supernet_are_read_back_and_drawn(tmp_path: Path) -> None:
    rounds = [
        a_round(1, figures={}),
        a_round(2, figures=cloud_figures(24, 8)),
        a_round(3, figures=cloud_figures(6, 4)),
        a_round(3, kind="evaluate", figures={}),
    ]
    info = a_run(run="r9", algorithm="es_afl")
    write_results(tmp_path / "r9", info, rounds, model=None, manifest=Manifest.of(info))
    sizes = sizes_of(read_rounds(tmp_path / "r9"))
    assert [each.round_no for each in sizes] == [2, 3]
    assert [each.share("n_weights") for each in sizes] == pytest.approx([32 / 40, 10 / 40])
    assert sizes[1].share("multiply_adds") == pytest.approx(124 / 610)
    assert sizes[1].shares("n_weights") == pytest.approx({"features.0": 0.2, "head": 0.4})
    assert "sub_networks" in pictured(tmp_path / "r9")


def test_run_without_sub_networks_has_no_picture_of_them(tmp_path: Path) -> None:
    info = a_run(run="r8")
    write_results(tmp_path / "r8", info, [a_round(1)], model=None, manifest=Manifest.of(info))
    assert sizes_of(read_rounds(tmp_path / "r8")) == []
    assert "sub_networks" not in pictured(tmp_path / "r8")
