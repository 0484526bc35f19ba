"""The data partition: samples of each class at each seat."""

from __future__ import annotations

from collections.abc import Sequence

from shared.plots.picture import Axis, Bars, Cells, Picture, Series
from shared.run_records.runs import SeatInfo


def partition(seats: Sequence[SeatInfo], title: str) -> Picture | None:
    """Samples of each seat, and of each class at each seat; a seat without data of its own has no column."""
    seats = [seat for seat in seats if seat.label_counts]
    if not seats:
        return None
    n_classes = max(len(seat.label_counts) for seat in seats)
    counts = [(*seat.label_counts, *[0] * (n_classes - len(seat.label_counts))) for seat in seats]
    names, x = tuple(str(seat.seat) for seat in seats), Axis(label="device")
    totals = Bars(
        x=x,
        y=Axis(label="samples", from_zero=True),
        names=names,
        series=(Series(name="samples", y=tuple(float(sum(row)) for row in counts), colour=0),),
    )
    values = tuple(tuple(float(n) or None for n in row) for row in zip(*counts, strict=True))
    heat = Cells(
        x=x,
        y=Axis(label="class"),
        value=Axis(label="samples of the class", from_zero=True, whole=True),
        columns=names,
        rows=tuple(map(str, range(n_classes))),
        values=values,
    )
    return Picture(name="partition", title=title, panels=(totals, heat))
