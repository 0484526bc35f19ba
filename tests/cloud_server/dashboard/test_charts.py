"""ECharts options of pictures: the values of the records, in the units of the axes."""

from __future__ import annotations

import json

import pytest

from cloud_server.dashboard.chart_parts import value_axis
from cloud_server.dashboard.charts import DARK, LIGHT, height_px, options
from shared.plots.picture import Axis, Bars, Line, Lines, Mark, Series, Span, Spans
from shared.plots.timeline import MARKS, WHATS
from tests.shared.plots.test_draw import PANELS


@pytest.mark.parametrize("kind", PANELS)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_options_of_every_kind_of_panel_have_series_and_are_json(kind: str, theme) -> None:
    chart = options(PANELS[kind], theme)
    assert json.loads(json.dumps(chart, allow_nan=False))["series"]
    assert chart["textStyle"]["color"] == theme.text
    assert height_px(PANELS[kind]) > 100


def test_lines_are_in_the_unit_of_their_axis() -> None:
    chart = options(PANELS["lines"], LIGHT)
    assert chart["xAxis"]["name"] == "time (h)"
    assert chart["yAxis"]["name"] == "accuracy (%)"
    line, low, difference = chart["series"]
    assert (line["name"], line["data"]) == ("first $x", [[0, 10]])
    assert low["data"] == [[0, 10], [2, 20]]
    assert difference["data"] == [[0, 20, 10, 30], [2, 20, 20, 40]], "stacked on the lower limit, and with both limits"
    assert low["stack"] == difference["stack"]
    assert [entry if isinstance(entry, str) else entry["name"] for entry in chart["legend"]["data"]] == [
        "first $x",
        "band",
    ]
    assert '["time", " h", " %"]' in chart["tooltip"][":formatter"]


@pytest.mark.parametrize("kind", [kind for kind in PANELS if kind not in ("cells", "tree")])
def test_every_chart_of_series_has_a_legend(kind: str) -> None:
    """The colours of a heat map are explained by its scale, and a dendrogram has one kind of line."""
    chart = options(PANELS[kind], LIGHT)
    assert chart["legend"]["show"]
    assert chart["legend"]["data"]


def test_the_first_point_that_reaches_a_target_is_ringed() -> None:
    series = Series(name="run", x=(1, 2, 3), y=(0.1, 0.5, 0.9), highlight=1)
    chart = options(Lines(x=Axis(label="round"), y=Axis(label="accuracy", unit="share"), series=(series,)), LIGHT)
    line, ring = chart["series"]
    assert (line["type"], ring["type"], ring["data"]) == ("line", "scatter", [[2, 50]])


@pytest.mark.parametrize(("largest", "axis_end"), [(0.1, None), (0.96, 100), (1.2, None)])
def test_axis_of_shares_near_one_ends_at_100_percent(largest: float, axis_end: int | None) -> None:
    line = Series(name="global", y=(0.05, largest), x=(0.0, 1.0))
    panel = Lines(x=Axis(), y=Axis(label="accuracy", unit="share"), series=(line,))
    assert options(panel, LIGHT)["yAxis"].get("max") == axis_end


def test_cells_omit_missing_values_and_boxes_have_five_numbers() -> None:
    assert options(PANELS["cells"], LIGHT)["series"][0]["data"] == [[0, 0, 17]]
    scale = options(PANELS["cells"], DARK)
    assert (scale["title"]["text"], scale["visualMap"]["text"]) == ("colour: samples", ["17", "0"])
    boxes, means = options(PANELS["boxes"], LIGHT)["series"]
    assert boxes["data"] == [[10, 20, 30, 40, 50]]
    assert means["data"] == [[31, 0]]


def test_dendrogram_joins_leaves_at_their_distance() -> None:
    chart = options(PANELS["tree"], LIGHT)
    names, positions = chart["xAxis"]
    assert names["data"] == ["bob", "ann", "eve"]
    assert (positions["min"], positions["max"]) == (-0.5, 2.5)
    inner, outer = chart["series"]
    assert inner["data"] == [[1, 0], [1, 0.1], [2, 0.1], [2, 0]]
    assert outer["data"] == [[0, 0], [0, 0.9], [1.5, 0.9], [1.5, 0.1]]
    assert inner["lineStyle"]["color"] != outer["lineStyle"]["color"]
    assert inner["markLine"]["data"][0]["yAxis"] == 0.512


@pytest.mark.parametrize(("n_bars", "width"), [(10, 1), (500, 0)])
def test_a_line_around_bars_does_not_hide_many_thin_ones(n_bars: int, width: int) -> None:
    names = tuple(map(str, range(n_bars)))
    panel = Bars(x=Axis(), y=Axis(), names=names, series=(Series(name="samples", y=(1.0,) * n_bars),))
    assert [bar["itemStyle"]["borderWidth"] for bar in options(panel, LIGHT)["series"]] == [width]


def test_a_deadline_of_some_rows_is_a_stroke_in_each_with_an_entry_in_the_legend() -> None:
    spans = (Span(row=0, what="compute", begin=0.0, end=9.0),)
    lines = (Line(at=4, name="deadline", limit=True, rows=(0, 2)), Line(at=6, name="deadline", limit=True, rows=(1,)))
    chart = options(Spans(x=Axis(), rows=("a", "b", "c"), whats=("compute",), spans=spans, lines=lines), LIGHT)
    (strokes,) = (series for series in chart["series"] if series["name"] == "deadline")
    assert [point["value"] for point in strokes["data"]] == [[4, 0], [4, 2], [6, 1]]
    assert "deadline" in chart["legend"]["data"]
    assert not any(series.get("markLine", {}).get("data") for series in chart["series"])


def test_timeline_has_transparent_gaps_and_escaped_notes() -> None:
    panel = Spans(
        x=Axis(label="time", unit="seconds"),
        rows=("seat 4", "seat 9"),
        whats=("download", "compute"),
        spans=(
            Span(row=0, what="download", begin=1, end=3, note="<b>{a}</b>"),
            Span(row=0, what="compute", begin=5, end=6),
            Span(row=1, what="compute", begin=0, end=4),
        ),
    )
    series = options(panel, LIGHT)["series"]
    lengths = [
        (bar["name"], [cell["value"] if isinstance(cell, dict) else cell for cell in bar["data"]]) for bar in series
    ]
    assert lengths == [
        ("gap", [1, None]),
        ("download", [2, None]),
        ("compute", [None, 4]),
        ("gap", [2, None]),
        ("compute", [1, None]),
    ]
    assert series[0]["itemStyle"]["color"] == "transparent"
    assert series[1]["data"][0]["tooltip"]["formatter"].endswith("&lt;b&gt;&#123;a&#125;&lt;/b&gt;")


def test_bytes_are_scaled_by_the_largest_value_of_all_lines() -> None:
    axis = Axis(label="bytes in a round", unit="bytes", from_zero=True)
    series = (Series(name="up", x=(1,), y=(2_000_000,)), Series(name="down", x=(1,), y=(1000,)))
    chart = options(Lines(x=Axis(label="round", whole=True), y=axis, series=series), LIGHT)
    assert chart["yAxis"]["name"] == "bytes in a round (MB)"
    assert [line["data"][0][1] for line in chart["series"]] == [2, 0.001]
    assert chart["yAxis"]["scale"] is False
    assert chart["xAxis"]["minInterval"] == 1


def test_labels_of_ends_do_not_overlap_and_the_last_is_shown() -> None:
    spans = (Span(row=0, what="compute", begin=0.0, end=9.0),)
    instants = ((8.5, "b"), (9.0, "last"), (1.0, "first"), (8.0, "<a>"))
    lines = tuple(Line(at=at, name=name, limit=name == "first") for at, name in instants)
    chart = options(Spans(x=Axis(), rows=("r",), whats=("compute",), spans=spans, lines=lines), LIGHT)
    data = chart["series"][0]["markLine"]["data"]
    assert [(end["xAxis"], end["label"]["show"]) for end in data] == [(9, True), (8.5, False), (8, False), (1, True)]
    assert data[2]["tooltip"]["formatter"] == "&lt;a&gt;"
    assert [end["lineStyle"]["type"] for end in data] == ["dashed", "dashed", "dashed", "solid"]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_activities_differ_by_pattern_and_ends_of_visits_by_shape(theme) -> None:
    spans = tuple(Span(row=0, what=what, begin=at, end=at + 1) for at, what in enumerate(WHATS))
    marks = tuple(Mark(row=0, at=at, what=what) for at, what in enumerate(MARKS))
    panel = Spans(x=Axis(), rows=("r",), whats=WHATS, spans=spans, marked=MARKS, marks=marks)
    chart = options(panel, theme)
    bars = {series["name"]: json.dumps(series["itemStyle"].get("decal")) for series in chart["series"][: len(WHATS)]}
    assert set(bars) == set(WHATS)
    assert len(set(bars.values())) == len(WHATS)
    points = [series for series in chart["series"] if series["type"] == "scatter"]
    shapes = {
        series["name"]: (series["symbol"], series["symbolSize"], series["itemStyle"]["color"]) for series in points
    }
    assert list(shapes) == list(MARKS)
    assert len(set(shapes.values())) == len(MARKS)
    assert chart["legend"]["data"] == [*WHATS, *MARKS]


def test_a_logarithmic_axis_is_drawn_as_one() -> None:
    assert [value_axis(Axis(log=log), "", LIGHT, vertical=False)["type"] for log in (True, False)] == ["log", "value"]
