"""Pictures that an algorithm's module declares in one line, as `PICTURES` beside its `ALGORITHM`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.plots.history import RunHistory
from shared.plots.picture import Axis, Bars, Cells, Lines, Picture, Series, Value

Pictures = Callable[[RunHistory], Sequence[Picture]]
"""Type of `PICTURES`: the pictures of one run, beside those that every run has."""


def labels_by_round(name: str, title: str, labels: Sequence[str]) -> Pictures:
    """Stacked bars by round: the number of visits with each of the algorithm's labels, in the order of `labels`."""

    def pictures(history: RunHistory) -> Sequence[Picture]:
        rows = [row for row in history.trained if row.labels]
        if not rows:
            return ()
        series = tuple(
            Series(name=label, y=tuple(float(row.labels.get(label, 0)) for row in rows), colour=at)
            for at, label in enumerate(labels)
        )
        panel = Bars(
            x=Axis(label="round"),
            y=Axis(label="tasks", from_zero=True, whole=True),
            names=tuple(str(row.round_no) for row in rows),
            series=series,
            stacked=True,
        )
        return (Picture(name=name, title=title, panels=(panel,)),)

    return pictures


def figure_by_client(name: str, title: str, figure: str, label: str) -> Pictures:
    """A figure of visits by seat and round, and its mean over seats; of several visits in a round, the last counts."""

    def pictures(history: RunHistory) -> Sequence[Picture]:
        found = {
            (visit.seat, visit.round_no): visit.figures[figure] for visit in history.visits if figure in visit.figures
        }
        if not found:
            return ()
        seats, rounds = sorted({seat for seat, _ in found}), sorted({number for _, number in found})
        values: list[tuple[Value, ...]] = [tuple(found.get((seat, number)) for number in rounds) for seat in seats]
        known = [[value for value in column if value is not None] for column in zip(*values, strict=True)]
        means = tuple(sum(column) / len(column) for column in known)
        x, value = Axis(label="round", whole=True), Axis(label=label)
        mean = Lines(x=x, y=value, series=(Series(name="mean over clients", x=tuple(rounds), y=means),))
        cells = Cells(
            x=x,
            y=Axis(label="device"),
            value=value,
            columns=tuple(map(str, rounds)),
            rows=tuple(map(str, seats)),
            values=tuple(values),
        )
        return (Picture(name=name, title=title, panels=(mean, cells)),)

    return pictures
