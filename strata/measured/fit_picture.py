"""The picture of fits: for each column, the distribution functions of the measured values and of the mixture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shared.plots.picture import Axis, Lines, Picture, Series
from strata.measured.fit import Fit, curve

MOST_POINTS = 400
"""Most measured values that are drawn; of more, as many at equal shares."""
LABELS = {
    "compute_sps": "compute, samples a second",
    "up_bps": "bandwidth up, bit/s",
    "down_bps": "bandwidth down, bit/s",
    "latency_s": "latency, s",
    "jitter_s": "jitter, s",
    "delay_s": "delay, s",
    "link_delay_s": "delay of the link, s",
}


def picture_of(found: Sequence[Fit], source: str) -> Picture:
    """A panel for each column, below each other."""
    return Picture(name="fit", title=f"{source}: fitted and measured", panels=tuple(_panel(fit) for fit in found))


def _panel(fit: Fit) -> Lines:
    values, n = np.sort(fit.values), len(fit.values)
    shown = np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).round().astype(int))
    measured = Series(
        name=f"measured ({n:,})",
        x=tuple(values[shown].tolist()),
        y=tuple(((shown + 0.5) / n).tolist()),
        marker=None,
        dash=0,
    )
    x, y = curve(fit.found)
    parts = len(fit.found.mixture)
    fitted = Series(name=f"fitted, {parts} part{'s' * (parts > 1)}", x=tuple(x), y=tuple(y), marker=None, dash=1)
    label = LABELS[fit.column]
    return Lines(x=Axis(label=label, log=True), y=Axis(label="devices below", unit="share"), series=(measured, fitted))
