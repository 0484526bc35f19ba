"""`Comparison`: runs side by side."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shared.core.errors import NotFound
from shared.plots.curves import comparison as comparison_picture
from shared.results import comparison
from shared.results.comparison_figure import SHEET
from shared.results.text_tables import comparison_columns
from strata.comparison_table import comparison_rows
from strata.objects import html
from strata.objects.frames import frame
from strata.objects.plot import Plot
from strata.objects.run import Run

if TYPE_CHECKING:
    import pandas as pd


class Comparison:
    """Runs side by side, as `strata compare` shows them: how they differ, their accuracy, and the cost of a target."""

    def __init__(self, found: comparison.Comparison) -> None:
        self._found = found

    @property
    def target(self) -> float | None:
        """The accuracy to reach; None if no run has been evaluated."""
        return self._found.target

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why figures are not comparable or not final."""
        return tuple(self._found.remarks)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each run: the spec's fields that differ, its figures, and what it spent until the target.

        Raises:
            PandasMissing: pandas is not installed.
        """
        return frame(comparison_rows(self._found), "run")

    def plot(self) -> Plot:
        """Accuracy against rounds, simulated time and bytes up, a line for each run.

        Raises:
            NotFound: no run has been evaluated.
        """
        picture = comparison_picture(self._found.curves, self._found.target)
        if picture is None:
            raise NotFound("no run has been evaluated")
        return Plot(picture, SHEET)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(curve.label for curve in self._found.curves)!r}>"

    def _repr_html_(self) -> str:
        columns = comparison_columns(self._found)
        return html.table(zip(*(each.cells for each in columns), strict=True), [each.name for each in columns])


def compare(*runs: Run, target: float | None = None, clients: bool = False) -> Comparison:
    """Compare runs.

    Args:
        runs: one at least, of one cloud or of several, or saved ones.
        target: the accuracy to reach; None means the highest that all of them reach.
        clients: whether all are judged by the mean over clients of the model that each would use.

    Raises:
        NotFound: no run was given, or one has no results yet.
    """
    if not runs:
        raise NotFound("no run to compare was given")
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(run.results()) for run in runs]
        return Comparison(comparison.compare(folders, target, clients=clients))
