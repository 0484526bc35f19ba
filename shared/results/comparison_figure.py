"""The picture of a comparison: accuracy against rounds, simulated time and bytes up, in panels of one height.

Where it is known how accuracies spread over clients, a fourth panel shows that: a box for each run.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shared.core.errors import BadInput
from shared.core.formatting import scale
from shared.core.scores import Spread
from shared.plots.palette import COLOURS
from shared.results.comparison import Comparison, LearningCurve, Point
from shared.results.folder import write_file
from shared.results.matplotlib_figures import EXACT

FORMATS = ("png", "svg", "pdf")
_STYLES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_MOST_MARKED, _CROWD = 40, 12
"""Evaluations of a run that are marked; and runs, above which only the last of each is, and no first reach."""
_TARGET: dict[str, Any] = {"color": "0.55", "linewidth": 0.9, "linestyle": (0, (6, 4))}
_RING: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.4}
_WIDTH_IN = 13.5
_LETTERS = 150
"""About so many letters of the legend stand side by side in that width."""


def file_format(path: Path) -> str:
    """The format that a picture's name asks for.

    Raises:
        BadInput: none of those there are.
    """
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise BadInput(f"out: {path.name!r} ends in none of {', '.join('.' + known for known in FORMATS)}", field="out")
    return suffix


def draw_comparison(path: Path, comparison: Comparison) -> bool:
    """Draw the panels; a run has one colour, dash and marker in all of them. False if nothing was evaluated yet.

    Raises:
        BadInput: the suffix says no format that there is.
    """
    content = drawn_comparison(comparison, file_format(path))
    if content is not None:
        write_file(path, content)
    return content is not None


def drawn_comparison(comparison: Comparison, form: str = "png") -> bytes | None:
    """The panels as a file of that format, None if nothing was evaluated yet. The same runs give the same bytes."""
    from matplotlib import rc_context

    courses = [course for course in comparison.curves if course.points]
    if not courses:
        return None
    with rc_context({"svg.hashsalt": "compare", "svg.fonttype": "none", **EXACT}):
        return _drawn(courses, comparison.target, form)


def _drawn(courses: Sequence[LearningCurve], target: float | None, form: str) -> bytes:
    columns = _columns(courses)
    boxed = len(courses) <= _CROWD and any(course.clients for course in courses)
    figure, panels = _figure(courses, n_lines=-(-(len(courses) + 1) // columns), boxed=boxed)
    looks = [_look(index, _twins(courses, index)) for index in range(len(courses))]
    for axes, (name, of) in zip(panels, _axes_of(courses), strict=False):
        axes.set_xlabel(name)
        _panel(axes, courses, looks, of, target)
    if boxed:
        _boxes(panels[-1], courses, looks)
    _legend(figure, courses, looks, target, columns)
    buffer = io.BytesIO()
    when = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
    figure.savefig(buffer, format=form, metadata=when)
    return buffer.getvalue()


def _figure(courses: Sequence[LearningCurve], n_lines: int, *, boxed: bool) -> tuple[Any, list[Any]]:
    """Three empty panels, a narrower one for boxes, and room for a legend of so many lines below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(_WIDTH_IN, 4.6 + 0.21 * n_lines), dpi=300, layout="constrained")
    FigureCanvasAgg(figure)
    widths = [1.0, 1.0, 1.0, *([0.6] if boxed else [])]
    panels = list(figure.subplots(1, len(widths), sharey=True, width_ratios=widths))
    names = dict.fromkeys(course.info.name for course in courses)
    only = next(iter(names)) if len(names) == 1 else ""
    many = f"{len(courses)} runs" if len(courses) > 1 else ""
    figure.suptitle(": ".join(filter(None, (only, many))), parse_math=False)
    measures = dict.fromkeys(course.measure for course in courses)
    panels[0].set_ylabel(f"accuracy ({next(iter(measures))})" if len(measures) == 1 else "accuracy")
    panels[0].yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    panels[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _axes_of(courses: Sequence[LearningCurve]) -> list[tuple[str, Callable[[Point], float]]]:
    """What is to the right in each panel: its name with the unit, and its value at a point."""
    ends = [course.points[-1] for course in courses]
    seconds, time = scale("seconds", max(end.simulated_s for end in ends))
    n_bytes, size = scale("bytes", max(end.bytes_up for end in ends))
    return [
        ("rounds", lambda point: point.round_no),
        (f"simulated time ({time})", lambda point: point.simulated_s / seconds),
        (f"bytes up ({size})", lambda point: point.bytes_up / n_bytes),
    ]


def _twins(courses: Sequence[LearningCurve], index: int) -> int:
    """How many runs before this one have its accuracies: a line over theirs must let them be seen.

    Of more runs than there are colours, dashes tell runs apart already.
    """
    if len(courses) > len(COLOURS):
        return 0
    curves = [[(point.round_no, point.accuracy) for point in course.points] for course in courses[: index + 1]]
    return curves[:-1].count(curves[-1])


def _look(index: int, twins: int) -> dict[str, Any]:
    """The look of the run of that place: first colours change, then dashes (at once over a twin), then markers."""
    colour, rest = index % len(COLOURS), index // len(COLOURS)
    style, marker = (rest + twins) % len(_STYLES), rest // len(_STYLES) % len(_MARKERS)
    return {"color": COLOURS[colour], "linestyle": _STYLES[style], "marker": _MARKERS[marker]}


def _panel(
    axes: Any,
    courses: Sequence[LearningCurve],
    looks: Sequence[dict[str, Any]],
    of: Callable[[Point], float],
    target: float | None,
) -> None:
    """All curves over one measure, and the target."""
    crowded = len(courses) > _CROWD
    for course, look in zip(courses, looks, strict=True):
        every = slice(-1, None) if crowded else -(-len(course.points) // _MOST_MARKED)
        line = {"markersize": 3.5, "markevery": every, "linewidth": 1.1 if crowded else 1.5}
        axes.plot([of(point) for point in course.points], [point.accuracy for point in course.points], **look, **line)
        first = course.reached(target)
        if first is not None and not crowded:
            axes.plot([of(first)], [first.accuracy], color=look["color"], linestyle="none", **_RING)
    if target is not None:
        axes.axhline(target, **_TARGET, zorder=0)
    axes.set_xlim(left=0)


def _boxes(axes: Any, courses: Sequence[LearningCurve], looks: Sequence[dict[str, Any]]) -> None:
    """The clients of each run at the end, in its colour: least, quartiles and most; the mean as its marker."""
    for place, (course, look) in enumerate(zip(courses, looks, strict=True)):
        if course.clients is None:
            continue
        line = {"color": look["color"], "linewidth": 1.2}
        lines = dict.fromkeys(("boxprops", "whiskerprops", "capprops", "medianprops"), line)
        point = {"marker": look["marker"], "markersize": 4, "color": look["color"], "markeredgecolor": look["color"]}
        point["markerfacecolor"] = look["color"]
        boxes = [_box(course.clients)]
        axes.bxp(boxes, positions=[place], widths=0.6, showfliers=False, showmeans=True, meanprops=point, **lines)
    axes.set_xticks([])
    axes.set_xlabel("clients at the end")


def _box(s: Spread) -> dict[str, Any]:
    """A box as Matplotlib's `bxp` takes it: from the least to the most, no outliers apart."""
    return {"label": "", "mean": s.mean, "whislo": s.min, "q1": s.q1, "med": s.median, "q3": s.q3, "whishi": s.max}


def _columns(courses: Sequence[LearningCurve]) -> int:
    longest = max(len(course.label) for course in courses)
    return max(1, min(len(courses) + 1, _LETTERS // (longest + 8)))


def _legend(
    figure: Any, courses: Sequence[LearningCurve], looks: Sequence[dict[str, Any]], target: float | None, columns: int
) -> None:
    """All runs and the target below the panels, never on a curve."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **look, markersize=3.5, linewidth=1.5) for look in looks]
    names = [f" {course.label}" for course in courses]  # a blank, since Matplotlib hides what begins with `_`
    if target is not None:
        ringed = len(courses) <= _CROWD
        handles.append(Line2D([], [], **_TARGET, **(_RING if ringed else {})))
        names.append(f" target {100 * target:.4g} %" + (", and where a run first reaches it" if ringed else ""))
    legend = figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, handlelength=3
    )
    for entry in legend.get_texts():
        entry.set_parse_math(False)
