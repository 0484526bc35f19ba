"""The pictures that every run has: accuracy and loss, bytes on links, and how accuracies spread over clients.

Runs side by side: accuracy against rounds, simulated time and bytes, and the spread over clients at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, Protocol

from shared.core.scores import Spread
from shared.plots.history import RunHistory
from shared.plots.picture import Axis, Box, Boxes, Lines, Picture, Series, Value
from shared.run_records.rounds import RoundInfo

By = Literal["round", "time", "bytes"]
_ROUND = Axis(label="round", whole=True)
_ACCURACY, _LOSS = Axis(label="accuracy", unit="share"), Axis(label="loss")
_OF = {"own": "of its own", "received": "that it received"}
_LINKS = (
    ("device_bytes_up", "devices to edges"),
    ("device_bytes_down", "edges to devices"),
    ("edge_bytes_up", "edges to cloud"),
    ("edge_bytes_down", "cloud to edges"),
)


def accuracy(told: RunHistory, by: By = "round") -> Picture | None:
    """Accuracy and loss: of the global model, the mean over clients, and in training.

    Args:
        by: what is to the right: rounds, simulated time, or bytes on all links, up and down.
    """
    rows = told.trained
    if not rows:
        return None
    x = _places(rows, by)

    def line(name: str, of: Callable[[RoundInfo], Value], colour: int) -> Series | None:
        known = [(place, value) for place, row in zip(x, rows, strict=True) if (value := of(row)) is not None]
        if not known:
            return None
        places, values = zip(*known, strict=True)
        return Series(name=name, x=places, y=values, colour=colour, dashed=colour > 0)

    upper = (
        line("global model", lambda row: _global(row, "accuracy"), 0),
        line("mean over clients", lambda row: row.client_accuracy, 1),
    )
    lower = (
        line("global model", lambda row: _global(row, "loss"), 0),
        line("in training", lambda row: row.train_loss, 2),
    )
    axis = {"round": _ROUND, "time": Axis(label="simulated time", unit="seconds"), "bytes": _bytes("bytes, all links")}
    panels = [
        Lines(x=axis[by], y=y, series=tuple(filter(None, found)))
        for y, found in ((_ACCURACY, upper), (_LOSS, lower))
        if any(found)
    ]
    if not panels:
        return None
    return Picture(name="accuracy" if by == "round" else f"accuracy_by_{by}", title=_title(told), panels=tuple(panels))


def _places(rows: Sequence[RoundInfo], by: By) -> list[float]:
    if by == "round":
        return [row.round_no for row in rows]
    return list(accumulate(row.simulated_s if by == "time" else row.bytes_up + row.bytes_down for row in rows))


def _global(row: RoundInfo, figure: Literal["accuracy", "loss"]) -> Value:
    found = (row.evaluation or {}).get("global")
    return getattr(found, figure) if found else None


def bytes_on_links(told: RunHistory) -> Picture | None:
    """Bytes of the modelled system by round on both links, up and down."""
    rows = told.trained
    if not rows:
        return None
    x = tuple(float(row.round_no) for row in rows)
    series = tuple(
        Series(name=label, x=x, y=tuple(getattr(row, name) for row in rows), colour=at // 2, dashed=at % 2 == 1)
        for at, (name, label) in enumerate(_LINKS)
    )
    panel = Lines(x=_ROUND, y=_bytes("bytes in a round"), series=series)
    return Picture(name="bytes", title=f"{_title(told)}: bytes on the modelled links", panels=(panel,))


def _bytes(label: str) -> Axis:
    return Axis(label=label, unit="bytes", from_zero=True)


def clients(told: RunHistory) -> Picture | None:
    """How accuracies spread over clients, each on its own test set: by round, and a box at the end."""
    which = "own" if any("own" in row.clients for row in told.rounds) else "received"
    course = [(row.round_no, row.clients[which]) for row in told.trained if which in row.clients]
    if not course:
        return None
    numbers, spreads = [number for number, _ in course], [spread for _, spread in course]
    y = Axis(label=f"accuracy of the model {_OF[which]}", unit="share")
    whole = _band("from least to most", numbers, spreads, ("min", "max"))
    half = _band("the middle half", numbers, spreads, ("q1", "q3"))
    mean = Series(name="mean", x=tuple(numbers), y=tuple(spread.mean for spread in spreads), colour=0)
    panels = (Lines(x=_ROUND, y=y, series=(whole, half, mean)), *_ends(told))
    return Picture(name="clients", title=f"{_title(told)}: clients, each on its own test set", panels=panels)


def _band(name: str, x: Sequence[int], spreads: Sequence[Spread], sides: tuple[str, str]) -> Series:
    low, high = (tuple(getattr(spread, side) for spread in spreads) for side in sides)
    return Series(name=name, x=tuple(x), y=(None,) * len(x), low=low, high=high, colour=0)


def _ends(told: RunHistory) -> tuple[Boxes, ...]:
    ends = {name: spread for row in told.rounds if row.kind == "evaluate" for name, spread in row.clients.items()}
    if ends.get("own") == ends.get("received"):  # the model that a client holds is both
        ends.pop("received", None)
    if not ends:
        return ()
    boxes = tuple(box(f"model {_OF.get(name, name)}", spread) for name, spread in sorted(ends.items()))
    x = Axis(label=f"at the end, {max(spread.n for spread in ends.values())} clients")
    return (Boxes(x=x, y=_ACCURACY, boxes=boxes),)


def box(name: str, spread: Spread) -> Box:
    """A spread as a box: from the least to the most, no outliers apart."""
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


def _title(told: RunHistory) -> str:
    return f"{told.info.name} ({told.info.algorithm})"


class Evaluated(Protocol):
    """An evaluation, and what had been spent until then."""

    @property
    def round_no(self) -> int: ...
    @property
    def simulated_s(self) -> float: ...
    @property
    def bytes_up(self) -> int: ...
    @property
    def accuracy(self) -> float: ...


class Beside(Protocol):
    """One run."""

    @property
    def label(self) -> str: ...
    @property
    def points(self) -> Sequence[Evaluated]: ...
    @property
    def clients(self) -> Spread | None: ...


_MEASURES: tuple[tuple[str, str, Axis, Callable[[Evaluated], float]], ...] = (
    ("rounds", "Accuracy by rounds", Axis(label="round", whole=True), lambda point: point.round_no),
    (
        "time",
        "Accuracy by simulated time",
        Axis(label="simulated time", unit="seconds", from_zero=True),
        lambda point: point.simulated_s,
    ),
    (
        "bytes",
        "Accuracy by bytes up",
        Axis(label="bytes up", unit="bytes", from_zero=True),
        lambda point: point.bytes_up,
    ),
)


def beside(courses: Sequence[Beside], target: float | None) -> list[Picture]:
    """A picture for each measure, with the target as a line, and boxes of clients; of runs that were evaluated."""
    courses = [course for course in courses if course.points]
    y, found = Axis(label="accuracy", unit="share"), []
    for name, title, x, of in _MEASURES:
        series = [
            Series(
                name=course.label, x=tuple(map(of, course.points)), y=tuple(point.accuracy for point in course.points)
            )
            for course in courses
        ]
        ends = [place for one in series for place in one.x]
        if target is not None and ends:
            at = (min(0.0, *ends), max(ends))
            series.append(Series(name="target", x=at, y=(target, target), dashed=True, colour=6))
        if series:
            found.append(Picture(name=f"beside_{name}", title=title, panels=(Lines(x=x, y=y, series=tuple(series)),)))
    boxes = tuple(box(course.label, course.clients) for course in courses if course.clients)
    if boxes:
        panel = Boxes(x=Axis(label="clients at the end"), y=y, boxes=boxes)
        found.append(Picture(name="beside_clients", title="Spread over clients", panels=(panel,)))
    return found
