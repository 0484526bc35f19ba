"""Draws pictures with Matplotlib, which is imported late and without pyplot: no global state, safe in a thread."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shared.core.files import write_file
from shared.core.formatting import scale
from shared.plots.dendrogram_layout import bars_of
from shared.plots.palette import CELLS, colour
from shared.plots.picture import Axis, Bars, Box, Boxes, Cells, Lines, Panel, Picture, Series, Span, Spans, Tree, Value

_WIDTH_IN = 8.5
_NARROW_IN = 6.0
"""In narrower pictures, legends are above their panels."""
_MAX_NAMED, _MAX_NUMBERED, _MAX_MARKED = 60, 120, 40
"""Limits: names on an axis and cells with a number written in (both at the usual width), marked points of a line."""
_MAX_CURVES = 13
"""With more curves than this in a panel, thinner lines are drawn, and only the last point of each is marked."""
_LETTERS_PER_IN = 11
"""Letters of a legend that fit into one inch."""
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_HATCHES = ("\\\\\\", "", "..", "///", "|||", "---")
"""Of a timeline's activities, in their order: what can be told apart without colours."""
_END_MARKS = ("o", "^", "D", "s", "X", "P", "v", "<", "*", ">")
_DEADLINE = "#B80000"
_RING: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.4}
EXACT: dict[Any, Any] = {"pdf.fonttype": 42}
"""Fonts as TrueType: many journals take no other."""


@dataclass(frozen=True)
class Sheet:
    """How a picture is drawn.

    Attributes:
        width_in: width in inches; the height follows from the content.
        text_pt: font size.
        dpi: resolution of what is not vector graphics.
    """

    width_in: float = _WIDTH_IN
    text_pt: float = 10.0
    dpi: int = 120


SCREEN = Sheet()
COLUMNS = {"single": Sheet(3.5, 7.0, 300), "double": Sheet(7.2, 8.0, 300)}
"""For print: one or two columns of a journal."""


def draw(path: Path, picture: Picture, sheet: Sheet = SCREEN) -> None:
    """Writes a picture in the format of the suffix (.png, .svg, .pdf)."""
    write_file(path, drawn(picture, path.suffix.removeprefix("."), sheet))


def drawn(picture: Picture, form: str = "png", sheet: Sheet = SCREEN) -> bytes:
    """A picture as a file of that format. The same picture gives the same bytes."""
    from matplotlib import rc_context

    looks: dict[Any, Any] = {"svg.hashsalt": picture.name, "svg.fonttype": "none", "font.size": sheet.text_pt, **EXACT}
    with rc_context(looks):
        figure, buffer = figure_of(picture, sheet), io.BytesIO()
        when = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        figure.savefig(buffer, format=form, dpi=sheet.dpi, metadata=when)
    return buffer.getvalue()


def figure_of(picture: Picture, sheet: Sheet = SCREEN) -> Any:
    """A picture as Matplotlib's `Figure`, which pyplot does not know."""
    from matplotlib import rc_context

    with rc_context({"font.size": sheet.text_pt}):
        return _side_by_side(picture, sheet) if picture.side_by_side else _stacked(picture, sheet)


def _figure(width_in: float, height_in: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _stacked(picture: Picture, sheet: Sheet) -> Any:
    """Panels below each other, each with its legend."""
    heights = [_height(panel) * (0.4 + 0.06 * sheet.text_pt) for panel in picture.panels]
    figure = _figure(sheet.width_in, sum(heights) + 0.5)
    one_x = len({(panel.kind, panel.x.label) for panel in picture.panels if not isinstance(panel, Tree)}) == 1
    all_axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights, sharex=one_x)[:, 0]
    figure.suptitle(picture.title, fontsize="large", parse_math=False, wrap=sheet.width_in < _NARROW_IN)
    for axes, panel in zip(all_axes, picture.panels, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        _DRAW[panel.kind](axes, panel)
    figure.align_ylabels(list(all_axes))
    return figure


def _side_by_side(picture: Picture, sheet: Sheet) -> Any:
    """Panels of lines or boxes beside each other, over one y-axis; one legend below them."""
    series = max((panel.series for panel in picture.panels if isinstance(panel, Lines)), key=len)
    letters = max(len(each.name) for each in series[:-1] or series) + 8
    columns = max(1, min(len(series), int(sheet.width_in * _LETTERS_PER_IN) // letters))
    figure = _figure(sheet.width_in, 4.6 + 0.21 * -(-len(series) // columns))
    widths = [0.6 if isinstance(panel, Boxes) else 1.0 for panel in picture.panels]
    all_axes = figure.subplots(1, len(widths), squeeze=False, sharey=True, width_ratios=widths)[0]
    figure.suptitle(picture.title, fontsize="large", parse_math=False)
    for axes, panel in zip(all_axes, picture.panels, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        if isinstance(panel, Lines):
            _curves(axes, panel)
        elif isinstance(panel, Boxes):
            _upright_boxes(axes, panel)
    for axes in all_axes[1:]:
        axes.set_ylabel("")
    _legend_below(figure, series, columns)
    return figure


def _legend_below(figure: Any, series: Sequence[Series], columns: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_look(each, colour(each.colour or 0))) for each in series]
    names = [f" {each.name}" for each in series]  # a blank, since Matplotlib hides names that begin with `_`
    legend = figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, handlelength=3)
    for entry in legend.get_texts():
        entry.set_parse_math(False)


def _height(panel: Panel) -> float:
    if isinstance(panel, Spans):
        return float(np.clip(0.22 * len(panel.rows) + 1, 2, 20))
    if isinstance(panel, Cells):
        return float(np.clip(0.2 * len(panel.rows) + 1.2, 2.4, 12))
    return 2.4 if isinstance(panel, Boxes) else 2.7


# ---- axes


def _unit(axis: Axis, values: Iterable[Value]) -> tuple[float, str]:
    """A factor and name of the unit that suits these values; 1 and no name for an axis without such a unit."""
    if axis.unit not in ("bytes", "seconds"):
        return 1.0, ""
    return scale(axis.unit, max((value for value in values if value is not None), default=0.0))


def _label(axes: Any, x: Axis | None, y: Axis | None, units: tuple[str, str] = ("", "")) -> None:
    """Sets labels with units, and the ticks' format."""
    for axis, side, unit in ((x, axes.xaxis, units[0]), (y, axes.yaxis, units[1])):
        if axis is not None:
            _label_one(side, axis, unit)
    if x is not None and x.log:
        axes.set_xscale("log")
    if y is not None and y.log:
        axes.set_yscale("log")
    if x is not None and x.from_zero:
        axes.set_xlim(left=0)
    if y is not None and y.from_zero:
        axes.set_ylim(bottom=0)


def _label_one(side: Any, axis: Axis, unit: str = "") -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    if axis.unit == "share":
        side.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    if axis.whole:
        side.set_major_locator(MaxNLocator(integer=True))
    side.set_label_text(f"{axis.label} ({unit})" if unit else axis.label, parse_math=False)


def _legend(axes: Any, n: int, **given: Any) -> None:
    """Beside the curves or above them, never on a curve."""
    if n:
        place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        if axes.figure.get_figwidth() < _NARROW_IN:
            place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 2, "borderaxespad": 0.2}
        for text in axes.legend(frameon=False, **place, **given).get_texts():
            text.set_parse_math(False)


def _room(axes: Any) -> float:
    """The picture's width relative to the usual one, at most 1."""
    return min(float(axes.figure.get_figwidth()) / _WIDTH_IN, 1.0)


def _name_ticks(side: Any, names: Sequence[str], label: str) -> None:
    """Writes names at 0, 1, ...: all if there is room, else every n-th."""
    across = side.axis_name == "x"
    step = -(-len(names) // int(_MAX_NAMED * (_room(side.axes) if across else 1)))
    longest = max(map(len, names), default=0)
    turned = 90 if across and longest * len(names[::step]) > 90 * _room(side.axes) else 0
    side.set_ticks(range(0, len(names), step), names[::step], rotation=turned, parse_math=False, fontsize="small")
    side.set_label_text(label, parse_math=False)


# ---- panels


def _lines(axes: Any, panel: Lines) -> None:
    _curves(axes, panel)
    _legend(axes, len(panel.series))


def _curves(axes: Any, panel: Lines) -> None:
    """All series of a panel, its axes and its grid."""
    shared: Sequence[float] = next((series.x for series in panel.series if series.x), ())
    x_scale, x_unit = _unit(panel.x, (x for series in panel.series for x in series.x))
    y_scale, y_unit = _unit(panel.y, (y for series in panel.series for y in (*series.y, *series.high)))
    crowded = len(panel.series) > _MAX_CURVES
    for at, series in enumerate(panel.series):
        positions = [x / x_scale for x in series.x or shared]
        hue = colour(at if series.colour is None else series.colour)
        _line(axes, series, positions, y_scale, hue, crowded=crowded)
    axes.grid(alpha=0.3)
    _label(axes, panel.x, panel.y, (x_unit, y_unit))


def _line(
    axes: Any, series: Series, positions: Sequence[float], y_scale: float, hue: str, *, crowded: bool = False
) -> None:
    """A line through the known values, and its band. Points are marked, since a single one makes no line."""
    if series.low:
        edges = [np.array(side, np.float64) / y_scale for side in (series.low, series.high)]
        line = any(y is not None for y in series.y)
        axes.fill_between(positions, *edges, color=hue, alpha=0.2, linewidth=0, label=None if line else series.name)
    known = [(x, y / y_scale) for x, y in zip(positions, series.y, strict=True) if y is not None]
    if known:
        every = slice(-1, None) if crowded else -(-len(known) // _MAX_MARKED)
        look = _look(series, hue) | ({"linewidth": 1.1} if crowded else {})
        axes.plot(*zip(*known, strict=True), markevery=every, label=series.name, **look)
    if series.highlight is not None:
        x, y = positions[series.highlight], (series.y[series.highlight] or 0.0) / y_scale
        axes.plot([x], [y], color=hue, linestyle="none", **_RING)


def _look(series: Series, hue: str) -> dict[str, Any]:
    """How a line is drawn: its colour, line style and marker."""
    marker = "" if series.marker is None else _MARKERS[series.marker % len(_MARKERS)]
    style = _DASHES[series.dash % len(_DASHES)]
    return {"color": hue, "linestyle": style, "marker": marker, "markersize": 3.5, "linewidth": 1.5}


def _bars(axes: Any, panel: Bars) -> None:
    places, below = np.arange(len(panel.names)), np.zeros(len(panel.names))
    up, unit = _unit(panel.y, (value for series in panel.series for value in series.y))
    width = 0.8 if panel.stacked else 0.8 / len(panel.series)
    for at, series in enumerate(panel.series):
        hue = colour(at if series.colour is None else series.colour)
        values = np.array([value or 0.0 for value in series.y]) / up
        left = places if panel.stacked else places + (at - (len(panel.series) - 1) / 2) * width
        axes.bar(left, values, width, bottom=below if panel.stacked else 0, color=hue, label=series.name)
        below = below + values
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)
    _label(axes, None, panel.y, ("", unit))
    _name_ticks(axes.xaxis, panel.names, panel.x.label)
    axes.set_xlim(-0.6, len(panel.names) - 0.4)
    _legend(axes, len(panel.series))


def _cells(axes: Any, panel: Cells) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    values = np.array([[np.nan if value is None else value for value in row] for row in panel.values], np.float64)
    low = 0.0 if panel.value.from_zero else None
    hues = LinearSegmentedColormap.from_list("cells", CELLS)
    image = axes.imshow(values, aspect="auto", origin="lower", cmap=hues, vmin=low, interpolation="nearest")
    axes.set_xticks(np.arange(1, values.shape[1]) - 0.5, minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", axis="x", color="white", linewidth=1)  # separates neighbours of the same colour
    _name_ticks(axes.xaxis, panel.columns, panel.x.label)
    _name_ticks(axes.yaxis, panel.rows, panel.y.label)
    axes.figure.colorbar(image, ax=axes, label=panel.value.label, pad=0.01)
    if values.size <= _MAX_NUMBERED * _room(axes):
        middle = (image.norm.vmin + image.norm.vmax) / 2
        for row, column in np.argwhere(~np.isnan(values)):
            value = values[row, column]
            ink = "white" if value > middle else "#111111"  # explicit: a page may draw everything else light on dark
            axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize="small", color=ink)


def _boxes(axes: Any, panel: Boxes) -> None:
    found = [_box(each) for each in panel.boxes]
    axes.bxp(found, showfliers=False, showmeans=True, widths=0.5, orientation="horizontal")
    axes.grid(alpha=0.3, axis="x")
    _label_one(axes.xaxis, panel.y)
    axes.set_title(panel.x.label, fontsize="medium", parse_math=False)


def _upright_boxes(axes: Any, panel: Boxes) -> None:
    """One box for each client group in its colour, without a name: beside curves, whose legend names it."""
    for at, each in enumerate(panel.boxes):
        hue = colour(each.colour)
        line = {"color": hue, "linewidth": 1.2}
        lines = dict.fromkeys(("boxprops", "whiskerprops", "capprops", "medianprops"), line)
        point = {"marker": _MARKERS[each.marker % len(_MARKERS)], "markersize": 4}
        point |= dict.fromkeys(("color", "markeredgecolor", "markerfacecolor"), hue)
        axes.bxp([_box(each)], positions=[at], widths=0.6, showfliers=False, showmeans=True, meanprops=point, **lines)
    axes.set_xticks([])
    _label(axes, panel.x, None)


def _box(b: Box) -> dict[str, Any]:
    """A box as Matplotlib's `bxp` takes it: from minimum to maximum, without outliers."""
    keys = {"whislo": b.low, "q1": b.q1, "med": b.median, "q3": b.q3, "whishi": b.high}
    return {"label": b.name, "mean": b.mean, **keys}


def _tree(axes: Any, panel: Tree) -> None:
    order, joints = bars_of(panel)
    for joint in joints:
        hue = "0.4" if joint.group is None else colour(joint.group)
        axes.plot(*zip(*joint.corners, strict=True), color=hue, linewidth=1.2)
    axes.axhline(panel.threshold, color="0.4", linestyle="--", linewidth=0.9)
    where = (1.01, panel.threshold)  # beside the lines, never on one
    axes.annotate(f"cut {where[1]:.3g}", where, xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    _label(axes, None, panel.y)
    _name_ticks(axes.xaxis, [panel.leaves[leaf] for leaf in order], "")


def _spans(axes: Any, panel: Spans) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    across, unit = _unit(panel.x, (span.end for span in panel.spans))
    whats, marks = panel.found
    handles: list[Any] = []
    for what in whats:
        spans, at = [span for span in panel.spans if span.what == what], panel.whats.index(what)
        lengths, begins = ([value / across for value in found] for found in zip(*map(_length, spans), strict=True))
        look: dict[str, Any] = {"facecolor": colour(at), "hatch": _HATCHES[at % len(_HATCHES)], "edgecolor": "white"}
        axes.barh([span.row for span in spans], lengths, 0.7, left=begins, linewidth=0, **look)
        handles.append(Patch(label=what, **look))
    for what in marks:
        shape = _end_mark(panel, what)
        found = [(mark.at / across, mark.row) for mark in panel.marks if mark.what == what]
        axes.plot(*zip(*found, strict=True), linestyle="none", clip_on=False, zorder=3, **shape)
        handles.append(Line2D([], [], label=what, linestyle="none", **shape))
    handles += _instants(axes, panel, across)
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)
    _label(axes, panel.x, None, (unit, ""))
    _name_ticks(axes.yaxis, panel.rows, "")
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    _legend(axes, len(handles), handles=handles)


def _end_mark(panel: Spans, what: str) -> dict[str, Any]:
    """The shape of a kind of marks; the last kind is a ring."""
    at = panel.marked.index(what)
    if at == len(panel.marked) - 1:
        return {**_RING, "color": "black", "markersize": 10}
    look = {"marker": _END_MARKS[at % len(_END_MARKS)], "color": "black", "markersize": 5}
    return look | {"markerfacecolor": "white" if at else "black"}


def _instants(axes: Any, panel: Spans, across: float) -> list[Any]:
    """Draws the lines at instants; returns one handle for the deadlines, and one for all others."""
    handles = []
    for limit, style in ((True, "-"), (False, "--")):
        found = [line for line in panel.lines if line.limit is limit]
        look: dict[str, Any] = {"color": _DEADLINE if limit else "0.4", "linestyle": style, "linewidth": 1.1}
        for line in found:
            if line.rows:
                ends = ([row + side for row in line.rows] for side in (-0.5, 0.5))
                axes.vlines([line.at / across] * len(line.rows), *ends, **look)
            else:
                axes.axvline(line.at / across, **look)
        if found:
            handles.append(axes.plot([], [], label="\n".join(dict.fromkeys(line.name for line in found)), **look)[0])
    return handles


def _length(span: Span) -> tuple[float, float]:
    """Its length and its beginning."""
    return span.end - span.begin, span.begin


_DRAW: dict[str, Callable[[Any, Any], None]] = {
    "lines": _lines,
    "bars": _bars,
    "cells": _cells,
    "boxes": _boxes,
    "tree": _tree,
    "spans": _spans,
}
