"""A picture, as notebooks show it and programs save or change it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shared.plots.picture import Picture
from shared.results.comparison_figure import file_format
from shared.results.matplotlib_figures import SCREEN, Sheet, draw, drawn, figure_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Plot:
    """A picture of runs. A notebook shows it; `save` writes it; `figure` is Matplotlib's, to change it.

    Attributes:
        picture: the picture as data.
        sheet: its width, font size and resolution.
    """

    picture: Picture
    sheet: Sheet = SCREEN

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it in the format of the suffix: .png, .svg or .pdf.

        Raises:
            BadInput: the suffix stands for no known format.
        """
        path = Path(path)
        file_format(path)
        draw(path, self.picture, self.sheet)
        return path

    def figure(self) -> Figure:
        """A new figure of Matplotlib; pyplot does not know it."""
        figure: Figure = figure_of(self.picture, self.sheet)
        return figure

    def __repr__(self) -> str:
        return f"<Plot {self.picture.title!r}; .save(path) writes it>"

    def _repr_png_(self) -> bytes:
        return drawn(self.picture, "png", replace(self.sheet, dpi=min(self.sheet.dpi, SCREEN.dpi)))
