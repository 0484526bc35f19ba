"""ECharts options for pictures; the browser's counterpart of `shared.results.matplotlib_figures`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from cloud_server.dashboard.chart_parts import (
    DARK,
    LIGHT,
    Options,
    Theme,
    category_axis,
    escaped,
    grid,
    legend,
    rounded,
    unit_of,
    value_axis,
)
from cloud_server.dashboard.timeline_chart import ROW_PX, timeline_options
from shared.plots.dendrogram_layout import bars_of
from shared.plots.palette import CELLS, colour
from shared.plots.picture import Axis, Bars, Boxes, Cells, Lines, Panel, Series, Spans, Tree

__all__ = ["DARK", "LIGHT", "Theme", "escaped", "height_px", "options"]
_MAX_MARKED_POINTS = 40
"""A line with more points than this has no symbols."""
_SYMBOLS = ("circle", "rect", "triangle", "diamond", "roundRect", "pin", "arrow")
_DASHES = ("solid", "dashed", "dotted", "dashed")
_OPACITY = (0.2, 0.3)
"""Of the first band of a chart, and of one within it."""
_BOX = "minimum, quartiles, maximum"
_TOOLTIP = """(points) => {
  const [label, xUnit, yUnit] = WORDS;
  const text = (value) => String(value).replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const lines = points.filter((point) => point.seriesName).map((point) => {
    const [, value, low, high] = point.value;
    const shown = low === undefined ? value : `${low} to ${high}`;
    return `${point.marker}${text(point.seriesName)}: ${shown}${yUnit}`;
  });
  return [`${text(label)} ${points[0].value[0]}${xUnit}`, ...lines].join("<br>");
}"""
_MAX_EDGED_BARS = 60
"""Of more bars than this, a line around each would hide the bars."""
_MAX_LABELLED_CELLS = 120
"""A heat map with more cells than this shows no numbers in them."""


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
        return min(max(ROW_PX * len(panel.rows) + 110, 180), 2200)
    if isinstance(panel, Cells):
        return min(max(14 * len(panel.rows) + 150, 260), 920)
    if isinstance(panel, Boxes):
        return 90 + 60 * len(panel.boxes)
    return 300


# ---- panels


def _lines(panel: Lines, theme: Theme) -> Options:
    common_x: Sequence[float] = next((series.x for series in panel.series if series.x), ())
    x_factor, x_unit = unit_of(panel.x, (x for series in panel.series for x in series.x))
    values = [y for series in panel.series for y in (*series.y, *series.high) if y is not None]
    y_factor, y_unit = unit_of(panel.y, values)
    drawn: list[Options] = []
    n_bands = 0
    for index, series in enumerate(panel.series):
        xs = [rounded(x * x_factor) for x in series.x or common_x]
        hue = colour(index if series.colour is None else series.colour)
        drawn += _band(series, xs, y_factor, hue, _OPACITY[n_bands % 2]) + _line(series, xs, y_factor, hue, index)
        n_bands += bool(series.low)
    return {
        "grid": grid(),
        "legend": legend(_entries(panel), theme),
        "tooltip": {"trigger": "axis", "confine": True, ":formatter": _tooltip(panel.x.label, x_unit, y_unit)},
        "xAxis": value_axis(panel.x, x_unit, theme, vertical=False),
        "yAxis": value_axis(panel.y, y_unit, theme, vertical=True, largest=max(values, default=None)),
        "series": drawn,
    }


def _line(series: Series, xs: Sequence[float], y_factor: float, hue: str, index: int) -> list[Options]:
    points = [[x, rounded(y * y_factor)] for x, y in zip(xs, series.y, strict=True) if y is not None]
    if not points:
        return []
    line = {"color": hue, "width": 2, "type": _DASHES[series.dash % len(_DASHES)]}
    has_symbols = series.marker is not None and len(points) <= _MAX_MARKED_POINTS
    marks = {"symbol": _SYMBOLS[index % len(_SYMBOLS)], "symbolSize": 6, "showSymbol": has_symbols}
    drawn = [
        {"type": "line", "name": series.name, "data": points, "lineStyle": line, "itemStyle": {"color": hue}, **marks}
    ]
    if series.highlight is not None and (y := series.y[series.highlight]) is not None:
        ring = {"color": "transparent", "borderColor": hue, "borderWidth": 2}
        point = [xs[series.highlight], rounded(y * y_factor)]
        drawn.append(
            {"type": "scatter", "name": "", "data": [point], "symbolSize": 16, "itemStyle": ring, "silent": True}
        )
    return drawn


def _entries(panel: Lines) -> list[str | Options]:
    """The entries of a legend: of a band, a patch as light as the band is."""
    entries, n_bands = list[str | Options](), 0
    for series in panel.series:
        patch = {"name": series.name, "icon": "rect", "itemStyle": {"opacity": _OPACITY[n_bands % 2]}}
        entries.append(patch if series.low else series.name)
        n_bands += bool(series.low)
    return entries


def _tooltip(x_label: str, x_unit: str, y_unit: str) -> str:
    """A function of the browser: the values of all lines at one place, and of bands their limits."""
    words = [x_label, *(f" {unit}" if unit else "" for unit in (x_unit, y_unit))]
    return _TOOLTIP.replace("WORDS", json.dumps(words))


def _band(series: Series, xs: Sequence[float], y_factor: float, hue: str, opacity: float) -> list[Options]:
    """The area between two curves: an invisible lower one, and the difference stacked on it as an area.

    A point of the difference holds both limits too, for the tooltip.
    """
    if not series.low:
        return []
    pairs = zip(xs, series.low, series.high, strict=True)
    known = [(x, low * y_factor, high * y_factor) for x, low, high in pairs if low is not None and high is not None]
    common = {"type": "line", "stack": series.name, "symbol": "none", "lineStyle": {"opacity": 0}, "silent": True}
    common |= {"itemStyle": {"color": hue}}
    lower = {**common, "name": "", "data": [[x, rounded(low)] for x, low, _ in known]}
    points = [[x, rounded(high - low), rounded(low), rounded(high)] for x, low, high in known]
    return [lower, {**common, "name": series.name, "data": points, "areaStyle": {"color": hue, "opacity": opacity}}]


def _bars(panel: Bars, theme: Theme) -> Options:
    factor, unit = unit_of(panel.y, (value for series in panel.series for value in series.y))
    drawn = [
        {
            "type": "bar",
            "name": series.name,
            "data": [None if value is None else rounded(value * factor) for value in series.y],
            "itemStyle": {
                "color": colour(index if series.colour is None else series.colour),
                "borderColor": theme.background,
                "borderWidth": int(len(panel.names) <= _MAX_EDGED_BARS),
            },
            **({"stack": "all"} if panel.stacked else {}),
        }
        for index, series in enumerate(panel.series)
    ]
    return {
        "grid": grid(),
        "legend": legend([series.name for series in panel.series], theme),
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": category_axis(panel.x, panel.names, theme),
        "yAxis": value_axis(panel.y, unit, theme, vertical=True),
        "series": drawn,
    }


def _cells(panel: Cells, theme: Theme) -> Options:
    data = [
        [column, row, rounded(value)]
        for row, values in enumerate(panel.values)
        for column, value in enumerate(values)
        if value is not None
    ]
    known = [value for _, _, value in data] or [0.0]
    low = 0.0 if panel.value.from_zero else min(known)
    return {
        "grid": grid(top=44, bottom=64),
        "tooltip": {"position": "top", "confine": True},
        "title": {
            "text": f"colour: {panel.value.label}",
            "right": 0,
            "textStyle": {"color": theme.text, "fontSize": 12, "fontWeight": "normal"},
        },
        "xAxis": category_axis(panel.x, panel.columns, theme),
        "yAxis": category_axis(panel.y, panel.rows, theme, vertical=True),
        "visualMap": {
            "min": low,
            "max": max(max(known), low + 1e-9),
            "inRange": {"color": list(CELLS)},
            "orient": "horizontal",
            "left": "center",
            "bottom": 0,
            "itemHeight": 120,
            "itemWidth": 12,
            "text": [f"{max(known):.4g}", f"{low:.4g}"],
            "textStyle": {"color": theme.text},
        },
        "series": [
            {"type": "heatmap", "data": data, "label": {"show": len(data) <= _MAX_LABELLED_CELLS, "fontSize": 10}}
        ],
    }


def _boxes(panel: Boxes, theme: Theme) -> Options:
    factor, unit = unit_of(panel.y, ())
    boxes = [[rounded(v * factor) for v in (b.low, b.q1, b.median, b.q3, b.high)] for b in panel.boxes]
    means = [[rounded(box.mean * factor), row] for row, box in enumerate(panel.boxes)]
    style = {"color": "transparent", "borderColor": colour(0), "borderWidth": 2}
    return {
        "grid": grid(top=34),
        "title": {"text": panel.x.label, "textStyle": {"color": theme.text, "fontSize": 13, "fontWeight": "normal"}},
        "xAxis": value_axis(panel.y, unit, theme, vertical=False),
        "yAxis": category_axis(Axis(), [box.name for box in panel.boxes], theme),
        "legend": {**legend([_BOX, "mean"], theme), "left": "right"},
        "series": [
            {"type": "boxplot", "name": _BOX, "layout": "vertical", "data": boxes, "itemStyle": style},
            {"type": "scatter", "name": "mean", "data": means, "symbol": "diamond", "itemStyle": {"color": colour(1)}},
        ],
    }


def _tree(panel: Tree, theme: Theme) -> Options:
    order, joints = bars_of(panel)
    lines = [
        {
            "type": "line",
            "data": [[rounded(x), rounded(y)] for x, y in joint.corners],
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
    names = category_axis(Axis(), [panel.leaves[leaf] for leaf in order], theme)
    names["axisLabel"] |= {"rotate": 60, "interval": 0 if len(order) <= 60 else "auto"}
    positions = {"type": "value", "min": -0.5, "max": len(order) - 0.5, "show": False}
    return {
        "grid": grid(right=64, bottom=8),
        "xAxis": [names, positions],
        "yAxis": value_axis(panel.y, "", theme, vertical=True),
        "series": [{**line, "xAxisIndex": 1} for line in lines],
    }


_DRAW: dict[str, Callable[[Any, Theme], Options]] = {
    "lines": _lines,
    "bars": _bars,
    "cells": _cells,
    "boxes": _boxes,
    "tree": _tree,
    "spans": timeline_options,
}
