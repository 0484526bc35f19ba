"""The printed table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HEADER = ("row", "what", "figure", "range", "ratio", "target")
FORM = "{:<10}{:<48}{:>12}{:>18}{:>8}  {}"


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        figure: with its unit.
        spread: least and most, where the figure is a median.
        ratio: what the row compares, this line's part of it.
        target: the most that the ratio, or the figure, may be; `met` says whether it is.
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
    """The median of some rounds."""
    return Line(row, what, f"{statistics.median(seconds):.3f} s", f"{min(seconds):.3f}-{max(seconds):.3f}")


def compared(row: str, what: str, seconds: Sequence[float], ours: Sequence[float], most: float | None = None) -> Line:
    """The median of a contender's rounds, and how many times as long ours take."""
    line = timed(row, what, seconds)
    ratio = statistics.median(ours) / statistics.median(seconds)
    target = "" if most is None else f"{most:.2f}"
    return Line(row, what, line.figure, line.spread, ratio, target, met=most is None or ratio <= most)


def at_most(row: str, what: str, figure: float, unit: str, most: float | None = None) -> Line:
    """A figure that has a limit of its own."""
    target = "" if most is None else f"{most:g} {unit}".rstrip()
    return Line(row, what, f"{figure:.2f} {unit}".rstrip(), target=target, met=most is None or figure <= most)


def show(lines: Iterable[Line]) -> None:
    """Print lines as they come."""
    for line in lines:
        print(line.text(), flush=True)
