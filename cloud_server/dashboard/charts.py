"""ECharts options for pictures; the browser's counterpart of `shared.results.matplotlib_figures`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shared.core.formatting import scale
from shared.plots.dendrogram_layout import bars_of
from shared.plots.palette import CELLS, colour
from shared.plots.picture import Axis, Bars, Boxes, Cells, Lines, Panel, Series, Spans, Tree, Value

Options = dict[str, Any]
_MAX_MARKED_POINTS = 40
"""A line with more points than this has no symbols."""
_SYMBOLS = ("circle", "rect", "triangle", "diamond", "roundRect", "pin", "arrow")
_GAP = "gap"
_DASHES = ("solid", "dashed", "dotted", "dashed")
_MAX_LABELLED_CELLS = 120
"""A heat map with more cells than this shows no numbers in them."""
_FULL_AXIS_ABOVE = 0.8
"""If the largest share exceeds this, the axis ends at 100 %."""
_LABEL_SPACING = 1 / 3
"""Least distance between labels above a timeline, as a share of its width: a label takes that much on a phone."""


@dataclass(frozen=True)
class Theme:
    """The colours of a chart beside those of its data: of text, of axes and grid lines, and of the background."""

    text: str
    lines: str
    background: str


LIGHT = Theme(text="#333333", lines="#dddddd", background="#ffffff")
DARK = Theme(text="#dddddd", lines="#444444", background="#1d1d1d")


def options(panel: Panel, theme: Theme) -> Options:
    """The options of one panel. Nothing is shown by colour alone: symbols, dashes or labels show it too."""
    specific = _DRAW[panel.kind](panel, theme)
    return {
        "animation": False,
        "textStyle": {"color": theme.text, "fontFamily": "sans-serif"},
        "tooltip": {"trigger": "item", "confine": True},
        "aria": {"enabled": True},
        **specific,
    }


def height_px(panel: Panel) -> int:
    """The height of a panel's chart in pixels."""
    if isinstance(panel, Spans):
        return min(max(18 * len(panel.rows) + 110, 180), 2200)
    if isinstance(panel, Cells):
        return min(max(14 * len(panel.rows) + 130, 240), 900)
    if isinstance(panel, Boxes):
        return 90 + 60 * len(panel.boxes)
    return 300


# ---- axes


def _unit(axis: Axis, values: Iterable[Value]) -> tuple[float, str]:
    """The factor by which values are multiplied, and the unit of the products."""
    if axis.unit == "share":
        return 100.0, "%"
    if axis.unit in ("bytes", "seconds"):
        divisor, unit = scale(axis.unit, max((value for value in values if value is not None), default=0.0))
        return 1 / divisor, unit
    return 1.0, ""


def _value_axis(axis: Axis, unit: str, theme: Theme, *, vertical: bool, largest: Value = None) -> Options:
    """A numeric axis. If the largest value of shares is close to 1, it ends at 100 %."""
    name = f"{axis.label} ({unit})" if unit else axis.label
    ends_at_100 = axis.unit == "share" and largest is not None and _FULL_AXIS_ABOVE < largest <= 1
    return {
        **({"max": 100} if ends_at_100 else {}),
        "type": "value",
        "name": name,
        "nameLocation": "end" if vertical else "middle",
        "nameGap": 14 if vertical else 28,
        "nameTextStyle": {"color": theme.text, "align": "left" if vertical else "center"},
        "scale": not axis.from_zero,
        "minInterval": 1 if axis.whole else 0,
        "axisLabel": {"color": theme.text},
        "axisLine": {"lineStyle": {"color": theme.lines}},
        "splitLine": {"lineStyle": {"color": theme.lines}},
    }


def _category_axis(axis: Axis, names: Sequence[str], theme: Theme, *, vertical: bool = False) -> Options:
    """A category axis."""
    return {
        "type": "category",
        "data": list(names),
        "name": axis.label,
        "nameLocation": "end" if vertical else "middle",
        "nameGap": 14 if vertical else 28,
        "nameTextStyle": {"color": theme.text, "align": "left" if vertical else "center"},
        "axisLabel": {"color": theme.text, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": theme.lines}},
    }


def _grid(*, left: int = 12, right: int = 24, top: int = 56, bottom: int = 30) -> Options:
    return {"left": left, "right": right, "top": top, "bottom": bottom, "containLabel": True}


def _legend(names: Sequence[str], theme: Theme) -> Options:
    return {"data": list(names), "top": 0, "textStyle": {"color": theme.text}, "show": len(names) > 1, "type": "scroll"}


def _round(value: float) -> float:
    """The value to five digits: more cannot be seen, and fewer bytes are sent."""
    return float(f"{value:.5g}")


# ---- panels


def _lines(panel: Lines, theme: Theme) -> Options:
    common_x: Sequence[float] = next((series.x for series in panel.series if series.x), ())
    x_factor, x_unit = _unit(panel.x, (x for series in panel.series for x in series.x))
    values = [y for series in panel.series for y in (*series.y, *series.high) if y is not None]
    y_factor, y_unit = _unit(panel.y, values)
    drawn: list[Options] = []
    for index, series in enumerate(panel.series):
        xs = [_round(x * x_factor) for x in series.x or common_x]
        hue = colour(index if series.colour is None else series.colour)
        drawn += _band(series, xs, y_factor, hue) + _line(series, xs, y_factor, hue, index)
    return {
        "grid": _grid(),
        "legend": _legend([series.name for series in panel.series], theme),
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": _value_axis(panel.x, x_unit, theme, vertical=False),
        "yAxis": _value_axis(panel.y, y_unit, theme, vertical=True, largest=max(values, default=None)),
        "series": drawn,
    }


def _line(series: Series, xs: Sequence[float], y_factor: float, hue: str, index: int) -> list[Options]:
    points = [[x, _round(y * y_factor)] for x, y in zip(xs, series.y, strict=True) if y is not None]
    if not points:
        return []
    line = {"color": hue, "width": 2, "type": _DASHES[series.dash % len(_DASHES)]}
    has_symbols = series.marker is not None and len(points) <= _MAX_MARKED_POINTS
    marks = {"symbol": _SYMBOLS[index % len(_SYMBOLS)], "symbolSize": 6, "showSymbol": has_symbols}
    return [
        {"type": "line", "name": series.name, "data": points, "lineStyle": line, "itemStyle": {"color": hue}, **marks}
    ]


def _band(series: Series, xs: Sequence[float], y_factor: float, hue: str) -> list[Options]:
    """The area between two curves: an invisible lower one, and the difference stacked on it as an area."""
    if not series.low:
        return []
    pairs = zip(xs, series.low, series.high, strict=True)
    known = [(x, low * y_factor, high * y_factor) for x, low, high in pairs if low is not None and high is not None]
    common = {"type": "line", "stack": series.name, "symbol": "none", "lineStyle": {"opacity": 0}, "silent": True}
    common |= {"itemStyle": {"color": hue}, "tooltip": {"show": False}}
    low = {**common, "name": f"{series.name} (low)", "data": [[x, _round(low)] for x, low, _ in known]}
    difference = {**common, "name": series.name, "data": [[x, _round(high - low)] for x, low, high in known]}
    return [low, {**difference, "areaStyle": {"color": hue, "opacity": 0.2}}]


def _bars(panel: Bars, theme: Theme) -> Options:
    factor, unit = _unit(panel.y, (value for series in panel.series for value in series.y))
    drawn = [
        {
            "type": "bar",
            "name": series.name,
            "data": [None if value is None else _round(value * factor) for value in series.y],
            "itemStyle": {
                "color": colour(index if series.colour is None else series.colour),
                "borderColor": theme.background,
            },
            **({"stack": "all"} if panel.stacked else {}),
        }
        for index, series in enumerate(panel.series)
    ]
    return {
        "grid": _grid(),
        "legend": _legend([series.name for series in panel.series], theme),
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": _category_axis(panel.x, panel.names, theme),
        "yAxis": _value_axis(panel.y, unit, theme, vertical=True),
        "series": drawn,
    }


def _cells(panel: Cells, theme: Theme) -> Options:
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
        "xAxis": _category_axis(panel.x, panel.columns, theme),
        "yAxis": _category_axis(panel.y, panel.rows, theme, vertical=True),
        "visualMap": {
            "min": low,
            "max": max(max(known), low + 1e-9),
            "inRange": {"color": list(CELLS)},
            "orient": "horizontal",
            "left": "center",
            "bottom": 0,
            "itemHeight": 120,
            "itemWidth": 12,
            "text": [f"{panel.value.label}: highest", "lowest"],
            "textStyle": {"color": theme.text},
        },
        "series": [
            {"type": "heatmap", "data": data, "label": {"show": len(data) <= _MAX_LABELLED_CELLS, "fontSize": 10}}
        ],
    }


def _boxes(panel: Boxes, theme: Theme) -> Options:
    factor, unit = _unit(panel.y, ())
    boxes = [[_round(v * factor) for v in (b.low, b.q1, b.median, b.q3, b.high)] for b in panel.boxes]
    means = [[_round(box.mean * factor), row] for row, box in enumerate(panel.boxes)]
    style = {"color": "transparent", "borderColor": colour(0), "borderWidth": 2}
    return {
        "grid": _grid(top=34),
        "title": {"text": panel.x.label, "textStyle": {"color": theme.text, "fontSize": 13, "fontWeight": "normal"}},
        "xAxis": _value_axis(panel.y, unit, theme, vertical=False),
        "yAxis": _category_axis(Axis(), [box.name for box in panel.boxes], theme),
        "series": [
            {"type": "boxplot", "layout": "vertical", "data": boxes, "itemStyle": style},
            {"type": "scatter", "name": "mean", "data": means, "symbol": "diamond", "itemStyle": {"color": colour(1)}},
        ],
    }


def _tree(panel: Tree, theme: Theme) -> Options:
    order, joints = bars_of(panel)
    lines = [
        {
            "type": "line",
            "data": [[_round(x), _round(y)] for x, y in joint.corners],
            "symbol": "none",
            "silent": True,
            "lineStyle": {"color": theme.text if joint.group is None else colour(joint.group), "width": 2},
        }
        for joint in joints
    ]
    cut = {"yAxis": panel.threshold, "label": {"formatter": f"cut {panel.threshold:.3g}", "color": theme.text}}
    if lines:
        lines[0]["markLine"] = {
            "symbol": "none",
            "precision": 9,
            "silent": True,
            "data": [cut],
            "lineStyle": {"color": theme.text},
        }
    names = _category_axis(Axis(), [panel.leaves[leaf] for leaf in order], theme)
    names["axisLabel"] |= {"rotate": 60, "interval": 0 if len(order) <= 60 else "auto"}
    positions = {"type": "value", "min": -0.5, "max": len(order) - 0.5, "show": False}
    return {
        "grid": _grid(right=64, bottom=8),
        "xAxis": [names, positions],
        "yAxis": _value_axis(panel.y, "", theme, vertical=True),
        "series": [{**line, "xAxisIndex": 1} for line in lines],
    }


def _spans(panel: Spans, theme: Theme) -> Options:
    """A timeline as stacked bars: each row is its spans in order of time, with transparent bars for the gaps."""
    factor, unit = _unit(panel.x, (span.end for span in panel.spans))
    rows: list[list[Any]] = [[] for _ in panel.rows]
    for span in sorted(panel.spans, key=lambda span: (span.row, span.begin)):
        rows[span.row].append(span)
    most_spans = max(map(len, rows), default=0)
    drawn: list[Options] = []
    for number in range(most_spans):
        for kind in (_GAP, *panel.whats):
            data = [_span_bar(row, number, kind, factor) for row in rows]
            if any(data):
                hidden = {"itemStyle": {"color": "transparent"}, "silent": True, "tooltip": {"show": False}}
                style = hidden if kind == _GAP else {"itemStyle": {"color": colour(panel.whats.index(kind))}}
                drawn.append({"type": "bar", "stack": "all", "name": kind, "data": data, "barWidth": "70%", **style})
    ends = _ends(panel, factor, theme)
    if drawn and ends:
        drawn[0]["markLine"] = {"symbol": "none", "precision": 9, "data": ends, "lineStyle": {"color": theme.text}}
    names = _category_axis(Axis(), panel.rows, theme)
    return {
        "grid": _grid(top=64),
        "legend": _legend(panel.whats, theme),
        "xAxis": _value_axis(panel.x, unit, theme, vertical=False),
        "yAxis": {**names, "inverse": True},
        "series": drawn,
    }


def _ends(panel: Spans, factor: float, theme: Theme) -> list[Options]:
    """Lines at the ends. A label is left out if it would overlap that of a later end; every line has a tooltip."""
    widest = max((span.end for span in panel.spans), default=0.0)
    next_label_at, ends = float("inf"), list[Options]()
    for time, text in sorted(panel.ends, reverse=True):
        shown = next_label_at - time >= _LABEL_SPACING * widest
        next_label_at = time if shown else next_label_at
        # The row axis is inverted, so a line starts at the top.
        label = {"show": shown, "position": "start", "formatter": text, "color": theme.text}
        ends.append({"xAxis": _round(time * factor), "label": label, "tooltip": {"formatter": escaped(text)}})
    return ends


def _span_bar(row: Sequence[Any], number: int, kind: str, factor: float) -> Any:
    """The bar of a row's span with that number, or of the gap before it; None if the span is of another kind."""
    if number >= len(row):
        return None
    span = row[number]
    if kind == _GAP:
        gap_s = span.begin - (row[number - 1].end if number else 0.0)
        return _round(gap_s * factor) if gap_s > 1e-12 else None
    if span.what != kind:
        return None
    text = f"{kind}: {span.end - span.begin:.3g} s" + (f"<br>{escaped(span.note)}" if span.note else "")
    return {"value": _round((span.end - span.begin) * factor), "tooltip": {"formatter": text}}


def escaped(text: str) -> str:
    """Text as HTML for a tooltip, where braces would be placeholders."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("{", "&#123;"), ("}", "&#125;")):
        text = text.replace(sign, entity)
    return text


_DRAW: dict[str, Callable[[Any, Theme], Options]] = {
    "lines": _lines,
    "bars": _bars,
    "cells": _cells,
    "boxes": _boxes,
    "tree": _tree,
    "spans": _spans,
}
