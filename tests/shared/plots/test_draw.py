"""Pictures as files: every kind of panel is drawn in every format and shows its content."""

from __future__ import annotations

import re

import pytest

from shared.plots.picture import (
    Axis,
    Bars,
    Box,
    Boxes,
    Cells,
    Line,
    Lines,
    Mark,
    Panel,
    Picture,
    Series,
    Span,
    Spans,
    Tree,
)
from shared.results.matplotlib_figures import drawn

TIME = Axis(label="time", unit="seconds", from_zero=True)
SHARE = Axis(label="accuracy", unit="share")
PANELS: dict[str, Panel] = {
    "lines": Lines(
        x=TIME,
        y=SHARE,
        series=(
            Series(name="first $x", x=(0, 7200), y=(0.1, None)),
            Series(name="band", x=(0, 7200), y=(None, None), low=(0.1, 0.2), high=(0.3, 0.4)),
        ),
    ),
    "bars": Bars(
        x=Axis(label="round"),
        y=Axis(label="visits", from_zero=True),
        names=("one", "two"),
        series=(Series(name="A", y=(1, 2)), Series(name="B", y=(3, None))),
        stacked=True,
    ),
    "cells": Cells(
        x=Axis(label="seat"),
        y=Axis(label="class"),
        value=Axis(label="samples", from_zero=True),
        columns=("s0", "s1"),
        rows=("c0",),
        values=((17, None),),
    ),
    "boxes": Boxes(
        x=Axis(label="at the end"),
        y=SHARE,
        boxes=(Box(name="own model", n=3, low=0.1, q1=0.2, median=0.3, q3=0.4, high=0.5, mean=0.31),),
    ),
    "tree": Tree(
        y=Axis(label="cosine distance"),
        leaves=("ann", "bob", "eve"),
        merges=((0, 2, 0.1, 2), (1, 3, 0.9, 3)),
        threshold=0.512,
    ),
    "spans": Spans(
        x=TIME,
        rows=("seat 4", "seat 9"),
        whats=("download", "compute"),
        spans=(Span(row=0, what="download", begin=0, end=30), Span(row=1, what="compute", begin=30, end=300)),
        marked=("used", "late", "decides the end"),
        marks=(Mark(row=0, at=30, what="used"), Mark(row=1, at=300, what="late", note="late, slow")),
        lines=(
            Line(at=250, name="deadline", limit=True),
            Line(at=200, name="own deadline", limit=True, rows=(0,)),
            Line(at=210, name="two edges end", rows=(0, 1)),
            Line(at=310, name="the round ends"),
        ),
    ),
}
WORDS = {
    "lines": ("time (h)", "accuracy", "first $x", "band", " %"),
    "bars": ("round", "visits", "one", "two", "A", "B"),
    "cells": ("seat", "class", "samples", "s1", "c0", "17"),
    "boxes": ("at the end", "accuracy", "own model"),
    "tree": ("ann", "bob", "eve", "cut 0.512", "cosine distance"),
    "spans": ("time (min)", "seat 4", "seat 9", "download", "compute", "used", "late", "deadline", "the round ends"),
}


@pytest.mark.parametrize("kind", PANELS)
def test_every_kind_of_panel_shows_its_texts(kind: str) -> None:
    picture = Picture(name=kind, title="what is $seen", panels=(PANELS[kind],))
    svg = drawn(picture, "svg")
    if kind == "spans":
        assert drawn(picture, "svg") == svg
    text = " ".join(re.findall(r">([^<>]+)<", svg.decode()))
    assert [word for word in ("what is $seen", *WORDS[kind]) if word not in text] == []


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG\r\n\x1a\n"), ("pdf", b"%PDF-")])
def test_pictures_of_several_panels_in_each_format(form: str, begins: bytes) -> None:
    picture = Picture(name="all", title="all", panels=(PANELS["lines"], PANELS["tree"]))
    assert drawn(picture, form).startswith(begins)


def test_very_many_names_are_thinned_out() -> None:
    bars = Bars(
        x=Axis(label="round"),
        y=Axis(label="visits"),
        names=tuple(f"r{number:03}" for number in range(500)),
        series=(Series(name="A", y=(1.0,) * 500),),
    )
    text = drawn(Picture(name="many", title="many", panels=(bars,)), "svg").decode()
    assert 30 <= len(set(re.findall(r"r\d{3}(?=<)", text))) <= 60
