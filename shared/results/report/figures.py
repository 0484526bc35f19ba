"""The pictures of a report, also as separate files for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shared.core.errors import NotFound
from shared.plots.curves import scores
from shared.plots.history import RunHistory
from shared.plots.partition import partition
from shared.plots.picture import Boxes, Lines, Picture
from shared.plots.timeline import LATER, RoundTimeline
from shared.results.folder import read_round
from shared.results.matplotlib_figures import Sheet, draw
from shared.results.reader import pictures_of, read_history, read_seats

PAGE = Sheet(width_in=5.4, text_pt=9.0)
"""A sheet whose text is readable on a phone, while a desktop page shows two pictures side by side."""
WIDE = Sheet(width_in=8.5, text_pt=9.0)
_MAX_SEATS = 120
"""Largest number of rows of a timeline; it shows the seats whose visits ended last."""


class Shown(NamedTuple):
    """A picture, and whether it needs the whole width of a page."""

    picture: Picture
    wide: bool


def pictures(folder: Path, history: RunHistory, round_no: int | None = None) -> list[Shown]:
    """Returns all pictures of a results folder.

    Args:
        round_no: the round of the timeline; None means the slowest round.

    Raises:
        NotFound: there is no such round, or a file cannot be read.
    """
    further = [scores(history, "time"), scores(history, "bytes")]
    further += [scores(history, metric=metric) for metric in history.info.metrics[1:]]
    samples = partition(read_seats(folder), f"{history.info.name}: samples of each class by device")
    all_pictures = [*pictures_of(history), *further, samples, _timeline(folder, history, round_no)]
    return [Shown(picture, _is_wide(picture)) for picture in all_pictures if picture is not None]


def write_pictures(folder: Path, into: Path, form: str, sheet: Sheet, round_no: int | None = None) -> list[Path]:
    """Draws each picture of a results folder into a separate file; returns their paths.

    Raises:
        NotFound: the folder holds no run, or no such round.
    """
    history, paths = read_history(folder), []
    for picture, _ in pictures(folder, history, round_no):
        path = into / f"{picture.name}.{form}"
        draw(path, picture, sheet)
        paths.append(path)
    return paths


def _timeline(folder: Path, history: RunHistory, round_no: int | None) -> Picture | None:
    if not history.trained:
        if round_no is not None:
            raise NotFound(f"run {history.info.run} has no round {round_no}")
        return None
    slowest = max(history.trained, key=lambda row: (row.simulated_s, -row.round_no)).round_no
    row = read_round(folder, slowest if round_no is None else round_no)
    spec, last = history.info.spec, history.trained[-1].round_no
    word = spec.sync.round_word
    later = range(row.round_no + 1, min(row.round_no + LATER, last) + 1) if word == "version" else ()
    label = f"{word} {row.round_no}" + (", the slowest" if row.round_no == slowest and len(history.trained) > 1 else "")
    placed = {seat.seat: seat for seat in read_seats(folder)}
    after = [read_round(folder, number) for number in later]
    drawn = RoundTimeline(row, after, word, spec.round_deadline_s, spec.report_deadline_s, placed)
    n_seats = len(drawn.seats())
    if n_seats > _MAX_SEATS:
        label = f"{label}: the {_MAX_SEATS} of {n_seats} devices whose tasks took the longest"
    title = f"{history.info.name}: timeline of {label}"
    return drawn.picture(title, slowest_first=n_seats > _MAX_SEATS, most=_MAX_SEATS)


def _is_wide(picture: Picture) -> bool:
    panels: Sequence[object] = picture.panels
    return not all(isinstance(panel, Lines | Boxes) for panel in panels)
