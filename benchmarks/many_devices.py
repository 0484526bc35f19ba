"""`python -m benchmarks.many_devices [PICTURE]`: seconds of a round against the number of devices, 100 to a million.

The same measurement as the row `devices` of `make bench`, with a log-log picture (docs/performance.md).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.rows.devices import measured

PARTICIPANTS: Mapping[int, tuple[int, ...]] = {
    100: (100, 1000, 10_000, 100_000, 1_000_000),
    1000: (1000, 10_000, 100_000, 1_000_000),
}
N_ROUNDS = 7


def rounds() -> dict[int, dict[int, list[float]]]:
    """By number of participants and of devices, the seconds of rounds."""
    found = {}
    for n_participants, counts in PARTICIPANTS.items():
        with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder, ExitStack() as stack:
            found[n_participants] = measured(Path(folder), n_participants, counts, N_ROUNDS, stack)[1]
    return found


def table(found: Mapping[int, Mapping[int, Sequence[float]]]) -> str:
    """The medians as a table."""
    lines = ["| devices a round | devices | seconds a round | range |", "|---|---|---|---|"]
    for n_participants, by_count in found.items():
        for n, seconds in by_count.items():
            middle = f"{statistics.median(seconds):.3f} | {min(seconds):.3f}-{max(seconds):.3f}"
            lines.append(f"| {n_participants:,} | {n:,} | {middle} |")
    return "\n".join(lines)


def draw(found: Mapping[int, Mapping[int, Sequence[float]]], path: Path) -> None:
    """Draw medians with their ranges over the number of devices, both logarithmic."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for (n_participants, by_count), colour in zip(found.items(), ("C0", "C1"), strict=False):
        middle = [statistics.median(seconds) for seconds in by_count.values()]
        below = [m - min(seconds) for m, seconds in zip(middle, by_count.values(), strict=True)]
        above = [max(seconds) - m for m, seconds in zip(middle, by_count.values(), strict=True)]
        label = f"{n_participants:,} of them train in a round"
        axes.errorbar(list(by_count), middle, (below, above), color=colour, marker="o", capsize=3, label=label)
    axes.set(xscale="log", yscale="log", xlabel="devices of the run", ylabel="seconds of a round")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 2, high * 2)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with rc_context({"svg.hashsalt": "population"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    seconds = rounds()
    print(table(seconds))
    if len(sys.argv) > 1:
        draw(seconds, Path(sys.argv[1]))
