"""Pictures of partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_ANNOTATED_CELLS = 120
"""Up to so many cells, each shows its number."""


def partition_picture(counts: npt.NDArray[np.integer[Any]], path: Path, title: str) -> None:
    """Draw label counts by device as a heat map, devices from left to right, with their totals above.

    The darker the more: lightness alone tells, so that the colour-blind see the same. A white cell is 0
    samples.

    Args:
        counts: (n_clients, n_classes), as `label_counts` gives them.
        path: where to; the suffix says the format (.png, .svg, .pdf).
        title: stands above.
    """
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    n_clients, n_classes = counts.shape
    figure = Figure(figsize=(float(np.clip(0.55 * n_clients + 2.5, 6, 14)), 6), layout="constrained")
    FigureCanvasAgg(figure)
    bars, heat = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3.5))
    positions = np.arange(n_clients)
    bars.bar(positions, counts.sum(axis=1), width=0.8, color="0.45")
    bars.set(ylabel="samples", title=title)
    bars.spines[["top", "right"]].set_visible(False)
    image = heat.imshow(
        np.ma.masked_equal(counts.T, 0),
        aspect="auto",
        origin="lower",
        cmap=ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256))),  # 1 sample is not white
        vmin=0,
        vmax=max(int(counts.max()), 1),
        interpolation="nearest",
    )
    heat.set(xlabel="device", ylabel="class")
    heat.set_xticks(positions[1:] - 0.5, minor=True)
    heat.tick_params(which="minor", length=0)
    heat.grid(which="minor", axis="x", color="white", linewidth=1)  # neighbours of one colour stay apart
    bars.tick_params(axis="x", which="both", length=0)
    for axis, n in ((heat.xaxis, n_clients), (heat.yaxis, n_classes)):
        axis.set_major_locator(MaxNLocator(nbins=min(n, 20), integer=True))
    figure.colorbar(image, ax=heat, label="samples of the class", pad=0.01)
    if counts.size <= _ANNOTATED_CELLS:
        _write_numbers(heat, counts)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _write_numbers(axes: Any, counts: npt.NDArray[np.integer[Any]]) -> None:
    """The count into each cell, dark on light and light on dark."""
    middle = counts.max() / 2
    for client, label in zip(*np.nonzero(counts), strict=True):
        value = int(counts[client, label])
        colour = "white" if value > middle else "black"
        axes.text(client, label, str(value), ha="center", va="center", fontsize=8, color=colour)
