"""The pictures of a run. Matplotlib is imported late and without pyplot: no global state, safe in a thread."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shared.api import RoundInfo, RunInfo, SeatInfo
from shared.results.files import write_file

_MEGA = 1e6


def draw_partition(path: Path, seats: Sequence[SeatInfo], title: str) -> None:
    """The heat map of label counts by seat; a seat without data of its own (an edge's worker) has no column."""
    from shared.training.pictures import partition_picture

    seats = [seat for seat in seats if seat.label_counts]
    if not seats:
        return
    width = max(len(seat.label_counts) for seat in seats)
    counts = np.zeros((len(seats), width), dtype=np.int64)  # (n_seats, n_classes)
    for row, seat in zip(counts, seats, strict=True):
        row[: len(seat.label_counts)] = seat.label_counts
    part = path.with_name(f".{path.name}")  # keeps the suffix, which says the format
    partition_picture(counts, part, title)
    part.replace(path)


def draw_accuracy(path: Path, info: RunInfo, rounds: Sequence[RoundInfo]) -> None:
    """Accuracy above, loss below, by round: global model, mean over clients, and training."""
    figure, (upper, lower) = _figure(f"{info.name} ({info.algorithm})", n_axes=2)
    trained = [row for row in rounds if row.kind == "train"]
    evaluations = [(row.round_no, row.evaluation or {}) for row in trained]
    evaluated = [(number, scores["global"]) for number, scores in evaluations if "global" in scores]
    _curve(upper, [(number, figures.accuracy) for number, figures in evaluated], "global model")
    _curve(upper, [(row.round_no, row.client_accuracy) for row in trained], "mean over clients", style="--")
    _curve(lower, [(number, figures.loss) for number, figures in evaluated], "global model")
    _curve(lower, [(row.round_no, row.train_loss) for row in trained], "training", style="--")
    upper.set(ylabel="accuracy")
    lower.set(ylabel="loss", xlabel="round")
    _save(figure, path)


def draw_bytes(path: Path, info: RunInfo, rounds: Sequence[RoundInfo]) -> None:
    """Megabytes by round on both links, up and down."""
    figure, (axes,) = _figure(f"{info.name} ({info.algorithm}): bytes on the modelled links", n_axes=1)
    trained = [row for row in rounds if row.kind == "train"]
    sums = ("device_bytes_up", "device_bytes_down", "edge_bytes_up", "edge_bytes_down")
    labels = ("devices to edges", "edges to devices", "edges to cloud", "cloud to edges")
    looks = (("C0", "-"), ("C0", "--"), ("C1", "-"), ("C1", "--"))  # a colour for each link, dashed down
    for name, label, (colour, style) in zip(sums, labels, looks, strict=True):
        points = [(row.round_no, getattr(row, name) / _MEGA) for row in trained]
        _curve(axes, points, label, style=style, colour=colour)
    axes.set(ylabel="MB in a round", xlabel="round")
    axes.set_ylim(bottom=0)
    _save(figure, path)


def _figure(title: str, *, n_axes: int) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8.5, 2.6 * n_axes + 1), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = list(figure.subplots(n_axes, 1, sharex=True, squeeze=False)[:, 0])
    all_axes[0].set_title(title)
    for axes in all_axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, all_axes


def _curve(
    axes: Any,
    points: Sequence[tuple[int, float | None]],
    label: str,
    *,
    style: str = "-",
    colour: str | None = None,
) -> None:
    """A line through the points that there are; a few points are marked, since one alone shows no line."""
    known = [(x, y) for x, y in points if y is not None]
    if known:
        marker = "o" if len(known) <= 40 else ""
        look = {"linestyle": style, "color": colour, "marker": marker, "markersize": 4}
        axes.plot(*zip(*known, strict=True), label=label, **look)


def _save(figure: Any, path: Path) -> None:
    for axes in figure.axes:
        if axes.lines:
            # beside the curves, never on one
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.align_ylabels()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_file(path, buffer.getvalue())
