"""Runs side by side: accuracy against rounds, simulated time and bytes, and the spread over clients at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shared.core.scores import Spread
from shared.figures.courses import box
from shared.figures.shapes import Axis, Boxes, Lines, Picture, Series


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
