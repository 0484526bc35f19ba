"""Pictures as options of ECharts: what `shared.results.matplotlib_figures` does for files, for the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.core.formatting import scale
from shared.plots.dendrogram_layout import bars_of
from shared.plots.palette import CELLS, colour
from shared.plots.picture import Axis, Bars, Boxes, Cells, Lines, Panel, Series, Spans, Tree, Value

Options = dict[str, Any]
_MARKED = 40
_SYMBOLS = ("circle", "rect", "triangle", "diamond", "roundRect", "pin", "arrow")
_DASHES = ("solid", "dashed", "dotted", "dashed")
_LABELLED = 120
"""Cells with their number written in."""
_ALMOST = 0.8
"""Of the whole: shares that come near it have an axis that ends there."""
_APART = 1 / 3
"""Of the width of a timeline, between words above it: on a phone they take as much."""


@dataclass(frozen=True)
class Look:
    """What pictures stand on.

    Attributes:
        ink, faint: of words, and of lines behind the picture.
        paper: the background, where marks need a rim.
    """

    ink: str
    faint: str
    paper: str


LIGHT = Look(ink="#333333", faint="#dddddd", paper="#ffffff")
DARK = Look(ink="#dddddd", faint="#444444", paper="#1d1d1d")


def options(panel: Panel, look: Look) -> Options:
    """The options of one panel. Colour never tells alone: symbols, dashes or words say the same."""
    found = _DRAW[panel.kind](panel, look)
    return {
        "animation": False,
        "textStyle": {"color": look.ink, "fontFamily": "sans-serif"},
        "tooltip": {"trigger": "item", "confine": True},
        "aria": {"enabled": True},
        **found,
    }


def height_px(panel: Panel) -> int:
    """How high a panel should stand."""
    if isinstance(panel, Spans):
        return min(max(18 * len(panel.rows) + 110, 180), 2200)
    if isinstance(panel, Cells):
        return min(max(14 * len(panel.rows) + 130, 240), 900)
    if isinstance(panel, Boxes):
        return 90 + 60 * len(panel.boxes)
    return 300


# ---- axes


def _unit(axis: Axis, values: Iterable[Value]) -> tuple[float, str]:
    """By what values are multiplied, and the unit that the axis then has."""
    if axis.unit == "share":
        return 100.0, "%"
    if axis.unit in ("bytes", "seconds"):
        worth, name = scale(axis.unit, max((value for value in values if value is not None), default=0.0))
        return 1 / worth, name
    return 1.0, ""


def _axis(axis: Axis, unit: str, look: Look, *, up: bool, most: Value = None) -> Options:
    """A numeric axis; where `most`, its largest value, is almost the whole, it ends there: none is above 100 %."""
    name = f"{axis.label} ({unit})" if unit else axis.label
    whole = {"max": 100} if axis.unit == "share" and most is not None and _ALMOST < most <= 1 else {}
    return {
        **whole,
        "type": "value",
        "name": name,
        "nameLocation": "end" if up else "middle",
        "nameGap": 14 if up else 28,
        "nameTextStyle": {"color": look.ink, "align": "left" if up else "center"},
        "scale": not axis.from_zero,
        "minInterval": 1 if axis.whole else 0,
        "axisLabel": {"color": look.ink},
        "axisLine": {"lineStyle": {"color": look.faint}},
        "splitLine": {"lineStyle": {"color": look.faint}},
    }


def _names(axis: Axis, names: Sequence[str], look: Look, *, up: bool = False) -> Options:
    """An axis of names."""
    return {
        "type": "category",
        "data": list(names),
        "name": axis.label,
        "nameLocation": "end" if up else "middle",
        "nameGap": 14 if up else 28,
        "nameTextStyle": {"color": look.ink, "align": "left" if up else "center"},
        "axisLabel": {"color": look.ink, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": look.faint}},
    }


def _grid(*, left: int = 12, right: int = 24, top: int = 56, bottom: int = 30) -> Options:
    return {"left": left, "right": right, "top": top, "bottom": bottom, "containLabel": True}


def _legend(names: Sequence[str], look: Look) -> Options:
    return {"data": list(names), "top": 0, "textStyle": {"color": look.ink}, "show": len(names) > 1, "type": "scroll"}


def _round(value: float) -> float:
    """As many digits as a screen shows: less travels."""
    return float(f"{value:.5g}")


# ---- panels


def _lines(panel: Lines, look: Look) -> Options:
    shared: Sequence[float] = next((series.x for series in panel.series if series.x), ())
    across, along = _unit(panel.x, (x for series in panel.series for x in series.x))
    values = [y for series in panel.series for y in (*series.y, *series.high) if y is not None]
    up, above = _unit(panel.y, values)
    drawn: list[Options] = []
    for at, series in enumerate(panel.series):
        places = [_round(x * across) for x in series.x or shared]
        hue = colour(at if series.colour is None else series.colour)
        drawn += _band(series, places, up, hue) + _line(series, places, up, hue, at)
    return {
        "grid": _grid(),
        "legend": _legend([series.name for series in panel.series], look),
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": _axis(panel.x, along, look, up=False),
        "yAxis": _axis(panel.y, above, look, up=True, most=max(values, default=None)),
        "series": drawn,
    }


def _line(series: Series, places: Sequence[float], up: float, hue: str, at: int) -> list[Options]:
    points = [[x, _round(y * up)] for x, y in zip(places, series.y, strict=True) if y is not None]
    if not points:
        return []
    line = {"color": hue, "width": 2, "type": _DASHES[series.dash % len(_DASHES)]}
    shown = series.marker is not None and len(points) <= _MARKED
    marks = {"symbol": _SYMBOLS[at % len(_SYMBOLS)], "symbolSize": 6, "showSymbol": shown}
    return [
        {"type": "line", "name": series.name, "data": points, "lineStyle": line, "itemStyle": {"color": hue}, **marks}
    ]


def _band(series: Series, places: Sequence[float], up: float, hue: str) -> list[Options]:
    """The area between two lines: the lower one unseen, the rest piled on it."""
    if not series.low:
        return []
    pairs = zip(places, series.low, series.high, strict=True)
    known = [(x, low * up, high * up) for x, low, high in pairs if low is not None and high is not None]
    common = {"type": "line", "stack": series.name, "symbol": "none", "lineStyle": {"opacity": 0}, "silent": True}
    common |= {"itemStyle": {"color": hue}, "tooltip": {"show": False}}
    low = {**common, "name": f"{series.name} from", "data": [[x, _round(low)] for x, low, _ in known]}
    rest = {**common, "name": series.name, "data": [[x, _round(high - low)] for x, low, high in known]}
    return [low, {**rest, "areaStyle": {"color": hue, "opacity": 0.2}}]


def _bars(panel: Bars, look: Look) -> Options:
    up, unit = _unit(panel.y, (value for series in panel.series for value in series.y))
    drawn = [
        {
            "type": "bar",
            "name": series.name,
            "data": [None if value is None else _round(value * up) for value in series.y],
            "itemStyle": {"color": colour(at if series.colour is None else series.colour), "borderColor": look.paper},
            **({"stack": "all"} if panel.stacked else {}),
        }
        for at, series in enumerate(panel.series)
    ]
    return {
        "grid": _grid(),
        "legend": _legend([series.name for series in panel.series], look),
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": _names(panel.x, panel.names, look),
        "yAxis": _axis(panel.y, unit, look, up=True),
        "series": drawn,
    }


def _cells(panel: Cells, look: Look) -> Options:
    data = [
        [column, row, _round(value)]
        for row, values in enumerate(panel.values)
        for column, value in enumerate(values)
        if value is not None
    ]
    known = [value for _, _, value in data] or [0.0]
    low = 0.0 if panel.value.from_zero else min(known)
    return {
        "grid": _grid(top=24, bottom=64),
        "tooltip": {"position": "top", "confine": True},
        "xAxis": _names(panel.x, panel.columns, look),
        "yAxis": _names(panel.y, panel.rows, look, up=True),
        "visualMap": {
            "min": low,
            "max": max(max(known), low + 1e-9),
            "inRange": {"color": list(CELLS)},
            "orient": "horizontal",
            "left": "center",
            "bottom": 0,
            "itemHeight": 120,
            "itemWidth": 12,
            "text": [f"{panel.value.label}: most", "least"],
            "textStyle": {"color": look.ink},
        },
        "series": [{"type": "heatmap", "data": data, "label": {"show": len(data) <= _LABELLED, "fontSize": 10}}],
    }


def _boxes(panel: Boxes, look: Look) -> Options:
    up, unit = _unit(panel.y, ())
    boxes = [[_round(v * up) for v in (b.low, b.q1, b.median, b.q3, b.high)] for b in panel.boxes]
    means = [[_round(box.mean * up), at] for at, box in enumerate(panel.boxes)]
    style = {"color": "transparent", "borderColor": colour(0), "borderWidth": 2}
    return {
        "grid": _grid(top=34),
        "title": {"text": panel.x.label, "textStyle": {"color": look.ink, "fontSize": 13, "fontWeight": "normal"}},
        "xAxis": _axis(panel.y, unit, look, up=False),
        "yAxis": _names(Axis(), [box.name for box in panel.boxes], look),
        "series": [
            {"type": "boxplot", "layout": "vertical", "data": boxes, "itemStyle": style},
            {"type": "scatter", "name": "mean", "data": means, "symbol": "diamond", "itemStyle": {"color": colour(1)}},
        ],
    }


def _tree(panel: Tree, look: Look) -> Options:
    order, joints = bars_of(panel)
    lines = [
        {
            "type": "line",
            "data": [[_round(x), _round(y)] for x, y in joint.corners],
            "symbol": "none",
            "silent": True,
            "lineStyle": {"color": look.ink if joint.group is None else colour(joint.group), "width": 2},
        }
        for joint in joints
    ]
    cut = {"yAxis": panel.threshold, "label": {"formatter": f"cut {panel.threshold:.3g}", "color": look.ink}}
    if lines:
        lines[0]["markLine"] = {
            "symbol": "none",
            "precision": 9,
            "silent": True,
            "data": [cut],
            "lineStyle": {"color": look.ink},
        }
    names = _names(Axis(), [panel.leaves[leaf] for leaf in order], look)
    names["axisLabel"] |= {"rotate": 60, "interval": 0 if len(order) <= 60 else "auto"}
    places = {"type": "value", "min": -0.5, "max": len(order) - 0.5, "show": False}
    return {
        "grid": _grid(right=64, bottom=8),
        "xAxis": [names, places],
        "yAxis": _axis(panel.y, "", look, up=True),
        "series": [{**line, "xAxisIndex": 1} for line in lines],
    }


def _spans(panel: Spans, look: Look) -> Options:
    """Stacked bars: of each row one stretch after another, with unseen ones where nothing is done."""
    across, unit = _unit(panel.x, (span.end for span in panel.spans))
    rows: list[list[Any]] = [[] for _ in panel.rows]
    for span in sorted(panel.spans, key=lambda span: (span.row, span.begin)):
        rows[span.row].append(span)
    gap, depth = "gap", max(map(len, rows), default=0)
    drawn: list[Options] = []
    for level in range(depth):
        for kind in (gap, *panel.whats):
            data = [_stretch(row, level, kind, gap, across) for row in rows]
            if any(data):
                unseen = {"itemStyle": {"color": "transparent"}, "silent": True, "tooltip": {"show": False}}
                look_of = unseen if kind == gap else {"itemStyle": {"color": colour(panel.whats.index(kind))}}
                drawn.append({"type": "bar", "stack": "all", "name": kind, "data": data, "barWidth": "70%", **look_of})
    ends = _ends(panel, across, look)
    if drawn and ends:
        drawn[0]["markLine"] = {"symbol": "none", "precision": 9, "data": ends, "lineStyle": {"color": look.ink}}
    names = _names(Axis(), panel.rows, look)
    return {
        "grid": _grid(top=64),
        "legend": _legend(panel.whats, look),
        "xAxis": _axis(panel.x, unit, look, up=False),
        "yAxis": {**names, "inverse": True},
        "series": drawn,
    }


def _ends(panel: Spans, across: float, look: Look) -> list[Options]:
    """Lines at the ends, their words above where they do not run into those of a later end; a tooltip has them all."""
    widest = max((span.end for span in panel.spans), default=0.0)
    free, found = float("inf"), list[Options]()
    for at, word in sorted(panel.ends, reverse=True):
        shown = free - at >= _APART * widest
        free = at if shown else free
        # The axis of rows runs downwards, and so do the lines.
        label = {"show": shown, "position": "start", "formatter": word, "color": look.ink}
        found.append({"xAxis": _round(at * across), "label": label, "tooltip": {"formatter": escaped(word)}})
    return found


def _stretch(row: Sequence[Any], level: int, kind: str, gap: str, across: float) -> Any:
    """The length of a row's stretch of that level and kind, with its note; None if it is of another kind."""
    if level >= len(row):
        return None
    span = row[level]
    if kind == gap:
        before = row[level - 1].end if level else 0.0
        return _round((span.begin - before) * across) if span.begin - before > 1e-12 else None
    if span.what != kind:
        return None
    words = f"{kind}: {span.end - span.begin:.3g} s" + (f"<br>{escaped(span.note)}" if span.note else "")
    return {"value": _round((span.end - span.begin) * across), "tooltip": {"formatter": words}}


def escaped(words: str) -> str:
    """As a tooltip's HTML; braces are placeholders there."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("{", "&#123;"), ("}", "&#125;")):
        words = words.replace(sign, entity)
    return words


_DRAW: dict[str, Callable[[Any, Look], Options]] = {
    "lines": _lines,
    "bars": _bars,
    "cells": _cells,
    "boxes": _boxes,
    "tree": _tree,
    "spans": _spans,
}
