"""The printed table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HEADER = ("row", "what", "figure", "range", "ratio", "target")
FORM = "{:<11}{:<48}{:>12}{:>18}{:>8}  {}"


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        figure: the measured value with its unit.
        spread: minimum and maximum, if the figure is a median.
        ratio: ratio of this line's variant to the reference, if the row compares.
        target: upper limit of the ratio or the figure; `met` says whether it holds.
    """

    row: str
    what: str
    figure: str
    spread: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool = True

    def text(self) -> str:
        """The line as printed."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        target = f"<= {self.target} {'met' if self.met else 'MISSED'}" if self.target else ""
        return FORM.format(self.row, self.what, self.figure, self.spread, ratio, target).rstrip()


def timed(row: str, what: str, seconds: Sequence[float]) -> Line:
    """A line with the median seconds of rounds."""
    return Line(row, what, f"{statistics.median(seconds):.3f} s", f"{min(seconds):.3f}-{max(seconds):.3f}")


def compared(row: str, what: str, seconds: Sequence[float], ours: Sequence[float], most: float | None = None) -> Line:
    """A line with the median seconds of a variant, and the ratio of our rounds to its."""
    line = timed(row, what, seconds)
    ratio = statistics.median(ours) / statistics.median(seconds)
    target = "" if most is None else f"{most:.2f}"
    return Line(row, what, line.figure, line.spread, ratio, target, met=most is None or ratio <= most)


def at_most(row: str, what: str, figure: float, unit: str, most: float | None = None) -> Line:
    """A line with a figure that has its own limit."""
    target = "" if most is None else f"{most:g} {unit}".rstrip()
    return Line(row, what, f"{figure:.2f} {unit}".rstrip(), target=target, met=most is None or figure <= most)


def skipped(row: str, what: str) -> Line:
    """A line of a variant that was not measured; `what` says why."""
    return Line(row, what, "")


def show(lines: Iterable[Line]) -> None:
    """Print lines as soon as they are measured."""
    for line in lines:
        print(line.text(), flush=True)
