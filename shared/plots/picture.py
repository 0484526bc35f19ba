"""A picture as records: panels with axes and values, independent of the program that draws them.

Files and reports are drawn with Matplotlib, the dashboard with ECharts. These choose fonts and sizes; a record holds
only what is shown.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.core.records import Record

Value = float | None
"""None: no value at this position."""


class Axis(Record):
    """One axis of a panel.

    Attributes:
        label: the quantity, with its unit.
        unit: `share`: from 0 to 1, shown in per cent; `bytes` and `seconds` are shown in a unit that suits their size.
        from_zero: whether the axis begins at 0.
        whole: whether its ticks are whole numbers only.
        log: whether it is logarithmic; all values are above 0.
    """

    label: str = ""
    unit: Literal["", "share", "bytes", "seconds"] = ""
    from_zero: bool = False
    whole: bool = False
    log: bool = False


class Series(Record):
    """A line, or the bars of one kind.

    Attributes:
        y: one value for each position.
        x: the positions, if the line has its own; empty: those of the panel's first series that has positions.
        dash: number of the line style: 0 solid, 1 dashed, 2 dotted, 3 dash-dotted.
        marker: number of the symbol at its points; None means no symbols.
        colour: number in the palette; series with the same number belong together. None means the next one.
        highlight: index of the point that is ringed.
        low, high: limits of a band around the line, as long as `y`, or empty.
    """

    name: str
    y: tuple[Value, ...]
    x: tuple[float, ...] = ()
    dash: int = 0
    marker: int | None = 0
    colour: int | None = None
    highlight: int | None = None
    low: tuple[Value, ...] = ()
    high: tuple[Value, ...] = ()


class Lines(Record):
    """Lines over numbers; each series may have its own positions."""

    kind: Literal["lines"] = "lines"
    x: Axis
    y: Axis
    series: tuple[Series, ...]


class Bars(Record):
    """Bars over names, beside each other or stacked; `y` of each series is as long as `names`."""

    kind: Literal["bars"] = "bars"
    x: Axis
    y: Axis
    names: tuple[str, ...]
    series: tuple[Series, ...]
    stacked: bool = False


class Cells(Record):
    """A heat map: darker cells have higher values.

    Attributes:
        columns, rows: their names, left to right and bottom to top.
        values: (n_rows, n_columns).
        value: the quantity in the cells.
    """

    kind: Literal["cells"] = "cells"
    x: Axis
    y: Axis
    value: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]


class Box(Record):
    """Minimum, quartiles, maximum and mean of `n` values; `colour` and `marker` as those of a `Series`."""

    name: str
    n: int
    low: float
    q1: float
    median: float
    q3: float
    high: float
    mean: float
    colour: int = 0
    marker: int = 0


class Boxes(Record):
    """Box plots beside each other."""

    kind: Literal["boxes"] = "boxes"
    x: Axis
    y: Axis
    boxes: tuple[Box, ...]


class Tree(Record):
    """A dendrogram.

    Attributes:
        leaves: their names.
        merges: as scipy's `linkage`: two nodes, their distance, how many leaves; row i makes node `len(leaves) + i`.
        threshold: the distance at which it is cut.
    """

    kind: Literal["tree"] = "tree"
    y: Axis
    leaves: tuple[str, ...]
    merges: tuple[tuple[float, float, float, float], ...]
    threshold: float


class Span(Record):
    """An activity from `begin` to `end` in one row; a reader who asks is shown `note`, or without one what it is."""

    row: int
    what: str
    begin: float
    end: float
    note: str = ""


class Mark(Record):
    """What happened at an instant in one row; a reader who asks is shown `note`, or without one what it is."""

    row: int
    at: float
    what: str
    note: str = ""


class Line(Record):
    """An instant with its name.

    Attributes:
        limit: whether it is a deadline.
        rows: those that it crosses; none means all.
    """

    at: float
    name: str
    limit: bool = False
    rows: tuple[int, ...] = ()


class Spans(Record):
    """A timeline (Gantt chart).

    Attributes:
        rows: from top to bottom.
        whats: all kinds of activities, in the order of their colours and patterns.
        marked: all kinds of marks, in the order of their shapes; the last one is a ring around another mark.
    """

    kind: Literal["spans"] = "spans"
    x: Axis
    rows: tuple[str, ...]
    whats: tuple[str, ...]
    spans: tuple[Span, ...]
    marked: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def found(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The kinds of activities and of marks that occur, in their orders: those that a legend names."""
        whats, marks = {span.what for span in self.spans}, {mark.what for mark in self.marks}
        return tuple(filter(whats.__contains__, self.whats)), tuple(filter(marks.__contains__, self.marked))


Panel = Annotated[Lines | Bars | Cells | Boxes | Tree | Spans, Field(discriminator="kind")]


class Picture(Record):
    """Panels that belong together.

    Attributes:
        name: of its file, without suffix.
        title: says what the picture shows.
        panels: below each other, or
        side_by_side: beside each other, with one y-axis and one legend for all.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    title: str
    panels: Annotated[tuple[Panel, ...], Field(min_length=1)]
    side_by_side: bool = False
