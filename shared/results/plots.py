"""The pictures of a run. Matplotlib is imported late and without pyplot: no global state, safe in a thread."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shared.api import RoundInfo, RunInfo, SeatInfo
from shared.results.files import write_file
from shared.results.sub_networks import Figure as Size
from shared.results.sub_networks import Sizes
from shared.spread import Spread

_MEGA = 1e6
_MODELS = {"own": "of its own", "received": "that it received"}
_MOST_NAMED = 60
"""Clients whose names stand below a dendrogram."""


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


def draw_clients(path: Path, info: RunInfo, rounds: Sequence[RoundInfo]) -> None:
    """How accuracies spread over clients: mean and range by round, and a box for each kind of model at the end."""
    from matplotlib.ticker import PercentFormatter

    which = "own" if any("own" in row.clients for row in rounds) else "received"
    course = [(row.round_no, row.clients[which]) for row in rounds if row.kind == "train" and which in row.clients]
    ends = {name: spread for row in rounds if row.kind == "evaluate" for name, spread in row.clients.items()}
    if not course or not ends:
        return
    if ends.get("own") == ends.get("received"):  # the model that a client holds is both
        del ends["received"]
    figure, (left, right) = _figure(f"{info.name} ({info.algorithm}): clients, each on its own test set", n_columns=2)
    numbers = [number for number, _ in course]
    for low, high, alpha, label in (("min", "max", 0.15, "from least to most"), ("q1", "q3", 0.3, "the middle half")):
        between = [[getattr(spread, side) for _, spread in course] for side in (low, high)]
        left.fill_between(numbers, *between, color="C0", alpha=alpha, linewidth=0, label=label)
    left.plot(numbers, [s.mean for _, s in course], color="C0", label="mean")
    left.set(ylabel=f"accuracy of the model {_MODELS[which]}", xlabel="round")
    left.legend(frameon=False, loc="lower right")
    boxes = [box_of(name, spread) for name, spread in sorted(ends.items())]
    right.bxp(boxes, showfliers=False, showmeans=True, widths=0.5)
    right.set_xlabel(f"at the end, {max(s.n for s in ends.values())} clients")
    left.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=" %"))
    _write(figure, path)


def box_of(label: str, s: Spread) -> dict[str, Any]:
    """A box as Matplotlib's `bxp` takes it: from the least to the most, no outliers apart."""
    return {"label": label, "mean": s.mean, "whislo": s.min, "q1": s.q1, "med": s.median, "q3": s.q3, "whishi": s.max}


def draw_groups(path: Path, info: RunInfo, tree: Mapping[str, Any]) -> None:
    """The dendrogram of a clustering in a round's figures, and where it was cut."""
    from scipy.cluster.hierarchy import dendrogram

    merges, users = np.asarray(tree["linkage"], np.float64), tree["users"]
    if not len(merges):
        return
    found = dendrogram(merges, no_plot=True, labels=users, color_threshold=tree["threshold"])
    figure, (axes,) = _figure(f"{info.name} ({info.algorithm}): groups of clients", n_axes=1)
    for x, y, colour in zip(found["icoord"], found["dcoord"], found["color_list"], strict=True):
        axes.plot(x, y, color=colour, linewidth=1.2)
    axes.axhline(tree["threshold"], color="0.4", linestyle="--", linewidth=0.9)
    where = (1.01, tree["threshold"])  # beside the lines, never on one
    axes.annotate(f"TH {where[1]:.3g}", where, xycoords=("axes fraction", "data"), va="center", annotation_clip=False)
    axes.grid(visible=False, axis="x")
    places = [5 + 10 * n for n in range(len(users))]  # where scipy puts the leaves
    shown = len(users) <= _MOST_NAMED
    axes.set_xticks(places if shown else [], found["ivl"] if shown else [], rotation=90)
    axes.set(ylabel="cosine distance", xlabel=None if shown else f"{len(users)} clients")
    axes.set_ylim(bottom=0)
    _write(figure, path)


def draw_sub_networks(path: Path, info: RunInfo, sizes: Sequence[Sizes]) -> None:
    """What clients' sub-networks have of the supernet: by round above, by layer at the end below."""
    figure, (above, below) = _figure(f"{info.name} ({info.algorithm}): sub-networks", n_axes=2, one_x=False)
    looks: tuple[tuple[Size, str, str], ...] = (
        ("n_weights", "weights", "C0"),
        ("multiply_adds", "multiply-adds", "C1"),
    )
    for at, (which, label, colour) in enumerate(looks):
        _curve(above, [(each.round_no, 100 * each.share(which)) for each in sizes], label, colour=colour)
        shares = sizes[-1].shares(which)
        places = np.arange(len(shares)) + (at - 0.5) * 0.4
        bars = below.bar(places, [100 * share for share in shares.values()], 0.4, label=label, color=colour)
        below.bar_label(bars, fmt="%.2g", fontsize=8)
        below.set_xticks(range(len(shares)), shares, rotation=20)
    above.set(ylabel="% of the supernet", xlabel="round")
    below.set(ylabel="% of the supernet", xlabel=f"layer, mean over clients in round {sizes[-1].round_no}")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
    _save(figure, path)


def _figure(title: str, *, n_axes: int = 1, n_columns: int = 1, one_x: bool = True) -> tuple[Any, list[Any]]:
    """Axes below each other, mostly with one x, or beside each other with one y, the first the widest."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8.5, 2.6 * n_axes + 1), layout="constrained")
    FigureCanvasAgg(figure)
    widths = [3] + [1] * (n_columns - 1)
    grid = figure.subplots(
        n_axes, n_columns, sharex="col" if one_x else "none", sharey="row", squeeze=False, width_ratios=widths
    )
    all_axes = list(grid.flat)
    figure.suptitle(title, parse_math=False) if n_columns > 1 else all_axes[0].set_title(title)
    for axes in all_axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
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
    _write(figure, path)


def _write(figure: Any, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_file(path, buffer.getvalue())
