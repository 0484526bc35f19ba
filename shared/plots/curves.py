"""The pictures of every run: a metric and loss, bytes on links, the spread over clients; and of a comparison.

A comparison shows a metric against rounds, simulated time and bytes, and the spread over clients at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, Protocol

from shared.core.scores import Spread, Spreads
from shared.plots.history import RunHistory
from shared.plots.palette import COLOURS
from shared.plots.picture import Axis, Box, Boxes, Lines, Panel, Picture, Series, Value
from shared.run_records.metrics import MODELS, MetricInfo
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import RunInfo

By = Literal["round", "time", "bytes", "wall"]
"""What charts have to the right: rounds, simulated time, bytes on all links up and down, or wall-clock time."""
_ROUND = Axis(label="round", whole=True)
_LOSS = Axis(label="loss")
_LINKS = (
    ("device_bytes_up", "devices to edges"),
    ("device_bytes_down", "edges to devices"),
    ("edge_bytes_up", "edges to cloud"),
    ("edge_bytes_down", "cloud to edges"),
)


def scores(history: RunHistory, by: By = "round", metric: MetricInfo | None = None) -> Picture | None:
    """A metric and the loss: of the global model, the mean over clients, and in training.

    Args:
        history: of the run.
        by: the x-axis.
        metric: one of the run's metrics; None means the headline.
    """
    shown = metric or history.info.headline
    rows = history.trained
    if not rows:
        return None
    x = [float(row.round_no) for row in rows]

    def line(name: str, of: Callable[[RoundInfo], Value], colour: int) -> Series | None:
        known = [(place, value) for place, row in zip(x, rows, strict=True) if (value := of(row)) is not None]
        if not known:
            return None
        places, values = zip(*known, strict=True)
        return Series(name=name, x=places, y=values, colour=colour, dash=int(colour > 0))

    upper = (
        line("global model", lambda row: row.on_global(shown), 0),
        line("global model, validation part", lambda row: row.on_validation(shown), 3),
        line("mean over clients", lambda row: history.info.over_clients(shown, row), 1),
    )
    lower = (
        line("global model", lambda row: row.loss, 0),
        line("training", lambda row: row.train_loss, 2),
    )
    panels = [
        Lines(x=_ROUND, y=y, series=tuple(filter(None, found)))
        for y, found in ((axis_of(shown), upper), (_LOSS, lower))
        if any(found)
    ]
    if not panels:
        return None
    return placed(Picture(name=file_name(shown.label), title=_title(history), panels=tuple(panels)), history, by)


def file_name(label: str) -> str:
    """A metric's label as the name of a picture: `top_k(k=3)` is `top_k_k_3`."""
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def axis_of(metric: MetricInfo) -> Axis:
    """The axis of a metric's values."""
    return Axis(label=metric.label, unit="share" if metric.unit == "share" else "")


def placed(picture: Picture, history: RunHistory, by: By) -> Picture:
    """A picture whose lines over rounds are drawn over another measure: at each round, its sum since the run began.

    Panels without lines over rounds, such as bars and heat maps, stay as they are.
    """
    if by == "round":
        return picture
    axis, of = _MEASURES_OF_ROUNDS[by]
    places = dict(zip((row.round_no for row in history.trained), accumulate(map(of, history.trained)), strict=True))

    def moved(panel: Lines) -> Lines:
        series = (each.replace(x=tuple(places.get(int(x), x) for x in each.x)) for each in panel.series)
        return panel.replace(x=axis, series=tuple(series))

    panels = [moved(panel) if isinstance(panel, Lines) and panel.x == _ROUND else panel for panel in picture.panels]
    return picture.replace(name=f"{picture.name}_by_{by}", panels=tuple(panels))


def bytes_on_links(history: RunHistory) -> Picture | None:
    """Bytes of each round on the simulated links, up and down."""
    rows = history.trained
    if not rows:
        return None
    x = tuple(float(row.round_no) for row in rows)
    series = tuple(
        Series(name=label, x=x, y=tuple(getattr(row, name) for row in rows), colour=at // 2, dash=at % 2)
        for at, (name, label) in enumerate(_LINKS)
    )
    panel = Lines(x=_ROUND, y=_bytes("bytes in a round"), series=series)
    return Picture(name="bytes", title=f"{_title(history)}: bytes on the simulated links", panels=(panel,))


def _bytes(label: str) -> Axis:
    return Axis(label=label, unit="bytes", from_zero=True)


_MEASURES_OF_ROUNDS: Mapping[By, tuple[Axis, Callable[[RoundInfo], float]]] = {
    "time": (Axis(label="simulated time", unit="seconds"), lambda row: row.simulated_s),
    "bytes": (_bytes("bytes, all links"), lambda row: row.bytes_up + row.bytes_down),
    "wall": (Axis(label="wall-clock time", unit="seconds"), lambda row: row.wall_s),
}


def clients(history: RunHistory, metric: MetricInfo | None = None) -> Picture | None:
    """The spread of a metric over clients, each on its own test set: by round, and as boxes at the end.

    Args:
        history: of the run.
        metric: one of the run's; None means the headline.
    """
    metric = metric or history.info.headline
    found = [(row, history.info.spreads(metric, row)) for row in history.rounds]
    which = "own" if any("own" in spreads for _, spreads in found) else "received"
    course = [(row.round_no, by[which]) for row, by in found if row.kind == "train" and which in by]
    if not course:
        return None
    numbers, spreads = [number for number, _ in course], [spread for _, spread in course]
    axis = axis_of(metric)
    y = axis.replace(label=f"{MODELS[which]} {axis.label}")
    whole = _band("minimum to maximum", numbers, spreads, ("min", "max"))
    half = _band("first to third quartile", numbers, spreads, ("q1", "q3"))
    x = tuple(float(number) for number in numbers)
    median = Series(name="median", x=x, y=tuple(spread.median for spread in spreads), colour=0, dash=1, marker=1)
    mean = Series(name="mean", x=x, y=tuple(spread.mean for spread in spreads), colour=0)
    panels = (Lines(x=_ROUND, y=y, series=(whole, half, median, mean)), *_ends(found, metric))
    return Picture(name="clients", title=f"{_title(history)}: clients, each on its own test set", panels=panels)


def _band(name: str, x: Sequence[int], spreads: Sequence[Spread], sides: tuple[str, str]) -> Series:
    low, high = (tuple(getattr(spread, side) for spread in spreads) for side in sides)
    return Series(name=name, x=tuple(x), y=(None,) * len(x), low=low, high=high, colour=0)


def _ends(found: Sequence[tuple[RoundInfo, Spreads]], metric: MetricInfo) -> tuple[Boxes, ...]:
    ends = {name: spread for row, by in found if row.kind == "evaluate" for name, spread in by.items()}
    if ends.get("own") == ends.get("received"):  # the client keeps the model that it received
        ends.pop("own", None)
    if not ends:
        return ()
    boxes = tuple(box(MODELS.get(name, f"model {name}"), spread) for name, spread in sorted(ends.items()))
    x = Axis(label=f"at the end, {max(spread.n for spread in ends.values())} clients")
    return (Boxes(x=x, y=axis_of(metric), boxes=boxes),)


def box(name: str, spread: Spread) -> Box:
    """A spread as a box from minimum to maximum, without outliers."""
    return Box(
        name=name,
        n=spread.n,
        low=spread.min,
        q1=spread.q1,
        median=spread.median,
        q3=spread.q3,
        high=spread.max,
        mean=spread.mean,
    )


def _title(history: RunHistory) -> str:
    return f"{history.info.name} ({history.info.algorithm})"


# ---- several runs

CROWD = 12
"""Of more runs than this, only the last point is marked, no point is ringed, and the panel of clients is left out."""
_N_DASHES, _N_MARKERS = 4, 6


class EvaluatedPoint(Protocol):
    """An evaluation, and what the run had spent until then."""

    @property
    def round_no(self) -> int: ...
    @property
    def simulated_s(self) -> float: ...
    @property
    def bytes_up(self) -> int: ...
    @property
    def wall_s(self) -> float: ...
    @property
    def value(self) -> float: ...


class ComparedRun(Protocol):
    """One run of a comparison."""

    @property
    def info(self) -> RunInfo: ...
    @property
    def metric(self) -> MetricInfo: ...
    @property
    def label(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def points(self) -> Sequence[EvaluatedPoint]: ...
    @property
    def clients(self) -> Spread | None: ...
    def reached(self, target: float | None) -> EvaluatedPoint | None: ...


_MEASURES: Mapping[By, tuple[Axis, Callable[[EvaluatedPoint], float]]] = {
    "round": (Axis(label="rounds", whole=True, from_zero=True), lambda point: point.round_no),
    "time": (Axis(label="simulated time", unit="seconds", from_zero=True), lambda point: point.simulated_s),
    "bytes": (Axis(label="bytes up", unit="bytes", from_zero=True), lambda point: point.bytes_up),
    "wall": (Axis(label="wall-clock time", unit="seconds", from_zero=True), lambda point: point.wall_s),
}


def comparison(
    runs: Sequence[ComparedRun], target: float | None, over: Sequence[By] = ("round", "time", "bytes")
) -> Picture | None:
    """A metric against some measures, and the spread over clients; None without an evaluation.

    A run has the same colour, line style and marker in all panels. The first point that reaches the target is ringed.
    """
    runs = [run for run in runs if run.points]
    if not runs:
        return None
    measures = dict.fromkeys(run.measure for run in runs)
    y = axis_of(runs[0].metric)
    if len(measures) == 1:
        y = y.replace(label=f"{y.label} ({next(iter(measures))})")
    looks = [_look(index, _n_equal(runs, index)) for index in range(len(runs))]
    panels: list[Panel] = []
    crowded = len(runs) > CROWD
    for x, of in (_MEASURES[by] for by in over):
        series = [_curve(run, look, of, target, crowded=crowded) for run, look in zip(runs, looks, strict=True)]
        panels.append(Lines(x=x, y=y, series=tuple(series + _target_line(series, runs[0].metric, target))))
    boxes = tuple(
        box(run.label, run.clients).replace(colour=look["colour"], marker=look["marker"])
        for run, look in zip(runs, looks, strict=True)
        if run.clients
    )
    if boxes and not crowded:
        panels.append(Boxes(x=Axis(label="clients at the end"), y=y, boxes=boxes))
    names = dict.fromkeys(run.info.name for run in runs)
    parts = (next(iter(names)) if len(names) == 1 else "", f"{len(runs)} runs" if len(runs) > 1 else "")
    return Picture(name="compare", title=": ".join(filter(None, parts)), panels=tuple(panels), side_by_side=True)


def _curve(
    run: ComparedRun,
    look: Mapping[str, int],
    of: Callable[[EvaluatedPoint], float],
    target: float | None,
    *,
    crowded: bool,
) -> Series:
    first = run.reached(target)
    return Series(
        name=run.label,
        x=tuple(map(of, run.points)),
        y=tuple(point.value for point in run.points),
        colour=look["colour"],
        dash=look["dash"],
        marker=look["marker"],
        highlight=list(run.points).index(first) if first is not None and not crowded else None,
    )


def _target_line(curves: Sequence[Series], metric: MetricInfo, target: float | None) -> list[Series]:
    if target is None:
        return []
    ringed = ", circled where a run first reaches it" if any(each.highlight is not None for each in curves) else ""
    end = max(x for each in curves for x in each.x)
    value = f"{100 * target:.4g} %" if metric.unit == "share" else f"{target:.4g}"
    name = f"target {value}{ringed}"
    return [Series(name=name, x=(0.0, end), y=(target, target), dash=1, marker=None, colour=len(COLOURS) - 1)]


def _n_equal(runs: Sequence[ComparedRun], index: int) -> int:
    """How many earlier runs have the same values: a curve drawn over theirs must let them be seen.

    0 where there are more runs than colours: then line styles distinguish runs already.
    """
    if len(runs) > len(COLOURS):
        return 0
    curves = [[(point.round_no, point.value) for point in run.points] for run in runs[: index + 1]]
    return curves[:-1].count(curves[-1])


def _look(index: int, n_equal: int) -> dict[str, int]:
    """Numbers of colour, line style and marker of a run: first colours change, then line styles, then markers."""
    rest = index // len(COLOURS)
    dash, marker = (rest + n_equal) % _N_DASHES, rest // _N_DASHES % _N_MARKERS
    return {"colour": index % len(COLOURS), "dash": dash, "marker": marker}
