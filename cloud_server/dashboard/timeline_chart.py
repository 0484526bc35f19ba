"""ECharts options of a timeline: activities as bars with patterns, the ends of visits as shapes, deadlines as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cloud_server.dashboard.chart_parts import (
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
from shared.core.formatting import duration
from shared.plots.palette import colour
from shared.plots.picture import Axis, Line, Spans

ROW_PX = 18
"""Height of a row."""
_GAP = "gap"
_LABEL_SPACING = 1 / 3
"""Least distance between labels above a timeline, as a share of its width: a label takes that much on a phone."""
_INK = "rgba(255,255,255,0.75)"
_STRIPES: Options = {"symbol": "rect", "dashArrayX": [1, 0], "dashArrayY": [2, 5], "color": _INK}
_PATTERNS: tuple[Options | None, ...] = (
    {**_STRIPES, "rotation": math.pi / 4},
    None,
    {"symbol": "circle", "dashArrayX": [[6, 6], [0, 6, 6, 0]], "dashArrayY": [6, 0], "symbolSize": 0.6, "color": _INK},
    {**_STRIPES, "rotation": -math.pi / 4},
    {**_STRIPES, "rotation": math.pi / 2},
    _STRIPES,
)
"""Of activities, in their order: what can be told apart without colours."""
_CROSS = "path://M0,1L1,0L4,3L7,0L8,1L5,4L8,7L7,8L4,5L1,8L0,7L3,4Z"
_ARROW = "path://M0,0L8,4L0,8L2,4Z"
_PLUS = "path://M3,0L5,0L5,3L8,3L8,5L5,5L5,8L3,8L3,5L0,5L0,3L3,3Z"
_SHAPES = ("circle", "triangle", "diamond", "rect", _CROSS, _PLUS, "triangle", "rect", "diamond", _ARROW)
"""Of the ends of visits, in the order of `shared.plots.timeline.MARKS`; those that come a second time are hollow."""
_DEADLINE = {"light": "#B80000", "dark": "#FF8A80"}


def timeline_options(panel: Spans, theme: Theme) -> Options:
    """A timeline as stacked bars: each row is its spans in order of time, with transparent bars for the gaps."""
    factor, unit = unit_of(panel.x, (span.end for span in panel.spans))
    drawn = _bars(panel, factor) + _marks(panel, factor, theme)
    if drawn and panel.lines:
        lines = _lines(panel, factor, theme)
        drawn[0]["markLine"] = {"symbol": "none", "precision": 9, "data": lines}
    parts = _parts_of_lines(panel, factor, theme)
    whats, marks = panel.found
    names = category_axis(Axis(), panel.rows, theme)
    names["axisLabel"] |= {"interval": 0}
    return {
        "grid": grid(top=64),
        "legend": legend([*whats, *marks, *(part["name"] for part in parts)], theme),
        "xAxis": value_axis(panel.x, unit, theme, vertical=False),
        "yAxis": {**names, "inverse": True},
        "series": drawn + parts,
    }


def _parts_of_lines(panel: Spans, factor: float, theme: Theme) -> list[Options]:
    """Lines that cross some rows only, as a stroke in each of these."""
    found: dict[str, list[Options]] = {}
    for line in panel.lines:
        points = [{"value": [rounded(line.at * factor), row]} for row in line.rows]
        found.setdefault(line.name, []).extend(points)
    look = {"symbol": "rect", "symbolSize": [2, ROW_PX], "itemStyle": {"color": _hue(theme)}, "z": 4}
    return [
        {"type": "scatter", "name": name, "data": data, "tooltip": {"formatter": escaped(name)}, **look}
        for name, data in found.items()
        if data
    ]


def _hue(theme: Theme) -> str:
    return _DEADLINE["dark" if theme.is_dark else "light"]


def _bars(panel: Spans, factor: float) -> list[Options]:
    rows: list[list[Any]] = [[] for _ in panel.rows]
    for span in sorted(panel.spans, key=lambda span: (span.row, span.begin)):
        rows[span.row].append(span)
    drawn: list[Options] = []
    for number in range(max(map(len, rows), default=0)):
        for kind in (_GAP, *panel.whats):
            data = [_span_bar(row, number, kind, factor) for row in rows]
            if any(data):
                hidden = {"itemStyle": {"color": "transparent"}, "silent": True, "tooltip": {"show": False}}
                look = hidden if kind == _GAP else {"itemStyle": _look(panel.whats.index(kind))}
                drawn.append({"type": "bar", "stack": "all", "name": kind, "data": data, "barWidth": "70%", **look})
    return drawn


def _look(number: int) -> Options:
    pattern = _PATTERNS[number % len(_PATTERNS)]
    return {"color": colour(number), **({"decal": pattern} if pattern else {})}


def _marks(panel: Spans, factor: float, theme: Theme) -> list[Options]:
    """A series of points for each kind of marks; the last kind is a ring."""
    drawn: list[Options] = []
    for what in panel.found[1]:
        number = panel.marked.index(what)
        is_ring = number == len(panel.marked) - 1
        data = [
            {
                "value": [rounded(mark.at * factor), mark.row],
                "tooltip": {"formatter": _lines_of(mark.note or what)},
            }
            for mark in panel.marks
            if mark.what == what
        ]
        shape = "circle" if is_ring else _SHAPES[number % len(_SHAPES)]
        is_hollow = shape in _SHAPES[:number]
        style = {"color": theme.text, "borderColor": theme.background, "borderWidth": 1}
        if is_ring or is_hollow:
            inside = "transparent" if is_ring else theme.background
            style = {"color": inside, "borderColor": theme.text, "borderWidth": 2}
        look = {"symbol": shape, "symbolSize": 16 if is_ring else 9, "itemStyle": style, "z": 6 if is_ring else 5}
        drawn.append({"type": "scatter", "name": what, "data": data, "silent": is_ring, **look})
    return drawn


def _lines(panel: Spans, factor: float, theme: Theme) -> list[Options]:
    """Lines at instants. A label is left out if it would overlap that of a later one; every line has a tooltip."""
    widest = max((span.end for span in panel.spans), default=0.0)
    next_label_at, drawn = float("inf"), list[Options]()
    for line in sorted(
        (line for line in panel.lines if not line.rows), key=lambda line: (line.at, line.name), reverse=True
    ):
        shown = next_label_at - line.at >= _LABEL_SPACING * widest
        next_label_at = line.at if shown else next_label_at
        drawn.append(_line(line, factor, theme, labelled=shown))
    return drawn


def _line(line: Line, factor: float, theme: Theme, *, labelled: bool) -> Options:
    hue = _hue(theme) if line.limit else theme.text
    # The row axis is inverted, so a line starts at the top.
    label = {"show": labelled, "position": "start", "formatter": line.name, "color": hue}
    style = {"color": hue, "type": "solid" if line.limit else "dashed", "width": 2 if line.limit else 1}
    tooltip = {"formatter": escaped(line.name)}
    return {"xAxis": rounded(line.at * factor), "label": label, "lineStyle": style, "tooltip": tooltip}


def _span_bar(row: Sequence[Any], number: int, kind: str, factor: float) -> Any:
    """The bar of a row's span with that number, or of the gap before it; None if the span is of another kind."""
    if number >= len(row):
        return None
    span = row[number]
    if kind == _GAP:
        gap_s = span.begin - (row[number - 1].end if number else 0.0)
        return rounded(gap_s * factor) if gap_s > 1e-12 else None
    if span.what != kind:
        return None
    text = _lines_of(span.note or f"{kind}: {duration(span.end - span.begin)}")
    return {"value": rounded((span.end - span.begin) * factor), "tooltip": {"formatter": text}}


def _lines_of(note: str) -> str:
    return escaped(note).replace("\n", "<br>")
