"""`Sweep`: runs of every combination of the values of some fields, and their results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.core.errors import NotFound
from shared.results.spec_differences import text
from shared.results.sweeps import SweepFolder, mean_rows, result_rows
from strata.objects import html
from strata.objects.comparison import Comparison
from strata.objects.connection import Connection
from strata.objects.frames import frame
from strata.objects.plot import Plot
from strata.objects.run import Run
from strata.output import quiet, stderr
from strata.runs.spec_check import checked
from strata.spec_files import SpecSource
from strata.sweeps.grid import Finish, axes_in, grid_of
from strata.sweeps.runner import compared, from_cloud, from_here, planned, run_all, run_locally

if TYPE_CHECKING:
    import pandas as pd

    from shared.spec.run import RunSpec


class Sweep:
    """The combinations of a sweep and their runs, as its folder records them."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Its folder, with `sweep.json` and `results.csv`."""
        return self._folder.path

    @property
    def completed(self) -> bool:
        """Whether the runs of all combinations have completed."""
        return not self._folder.todo()

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that have results, in the order of the combinations."""
        found = ((info, self._folder.folder_of(each)) for each, info in self._folder.rows())
        return tuple(Run(info, folder=folder) for info, folder in found if info is not None)

    @property
    def best(self) -> Run:
        """The run with the highest accuracy, the first of equals.

        Raises:
            NotFound: no run has been evaluated.
        """
        scored = [(run.accuracy, run) for run in self.runs if run.accuracy is not None]
        if not scored:
            raise NotFound(f"no run of the sweep in {self.folder} has been evaluated")
        return max(scored, key=lambda pair: pair[0])[1]

    def to_pandas(self) -> pd.DataFrame:
        """A row for each combination: its values, the figures of its run, and how that ended.

        Raises:
            PandasMissing: pandas is not installed.
        """
        return frame(result_rows(self._folder.rows()))

    def over_seeds(self) -> pd.DataFrame:
        """Means and sample deviations over the completed runs that differ only in their seed."""
        return frame(mean_rows(self._folder.rows()))

    def compare(self, target: float | None = None) -> Comparison:
        """The runs that have results, side by side; see `strata.compare`.

        Raises:
            NotFound: no run has results.
        """
        found = compared(self._folder, target)
        if found is None:
            raise NotFound(f"no run of the sweep in {self.folder} has results")
        return Comparison(found)

    def plot(self, target: float | None = None) -> Plot:
        """The picture of their comparison.

        Raises:
            NotFound: no run has been evaluated.
        """
        return self.compare(target).plot()

    def __repr__(self) -> str:
        done, n = len(self._folder.todo()), len(self._folder.sweep.combinations)
        return f"<Sweep {self._folder.sweep.name!r}: {n - done} of {n} combinations completed, in {self.folder}>"

    def _repr_html_(self) -> str:
        rows = result_rows(self._folder.rows())
        return html.table([[text(value) for value in row.values()] for row in rows], list(rows[0]), repr(self)[1:-1])


def sweep(
    spec: SpecSource,
    values: Mapping[str, Any],
    *,
    agents: int | None = None,
    parallel: int = 1,
    into: str | os.PathLike[str] | None = None,
    runs_dir: str | os.PathLike[str] = "runs",
    progress: bool = True,
) -> Sweep:
    """Run every combination of the values on one local topology, which is as large as the largest needs.

    Called again with the same arguments, it skips completed combinations, continues interrupted ones and repeats failed
    ones. A failed one does not stop the others; `completed` says whether there is one.

    Args:
        spec: the name of an experiment, the path of a spec's file, its fields, or a `Spec`.
        values: by dotted key, such as `{"lr": [0.05, 0.1], "seed": [1, 2]}`; a key with one value is set in all.
        agents: number of agent processes; None means one per core.
        parallel: number of runs that train side by side.
        into: the folder of the sweep; None means one in `runs_dir` with a name that follows from the combinations.
        runs_dir: the folder of results folders.
        progress: whether to show the progress, in a notebook or on stderr.

    Raises:
        BadInput: a combination is no valid spec; then nothing is started.
        KeyboardInterrupt: Ctrl-C; the current run is stopped, and the sweep can be called again.
    """
    specs, folder = _planned(spec, values, into, Path(runs_dir), checked)
    console = stderr() if progress else quiet()
    if folder.todo() and run_locally(specs, folder, agents=agents, parallel=parallel, console=console):
        raise KeyboardInterrupt
    return Sweep(folder)


def sweep_on(
    connection: Connection,
    spec: SpecSource,
    values: Mapping[str, Any],
    into: str | os.PathLike[str] | None,
    runs_dir: str | os.PathLike[str],
    parallel: int,
    progress: bool,
) -> Sweep:
    """Run every combination on a cloud, as `sweep` does."""
    client, place = connection.client, connection.runs_dir or Path(runs_dir)
    specs, folder = _planned(spec, values, into, place, lambda spec: spec)
    fetch = from_here(place) if connection.runs_dir else from_cloud(client, place)
    console = stderr() if progress else quiet()
    if folder.todo() and run_all(
        client, specs, folder, fetch=fetch, check=connection.check, parallel=parallel, console=console
    ):
        raise KeyboardInterrupt
    return Sweep(folder)


def _planned(
    spec: SpecSource, values: Mapping[str, Any], into: str | os.PathLike[str] | None, runs_dir: Path, finish: Finish
) -> tuple[list[RunSpec], SweepFolder]:
    axes = axes_in(values)
    arguments = [f"{key}={','.join(texts)}" for key, texts in axes]
    combinations = grid_of(spec, axes, finish)
    return planned(combinations, arguments, Path(into) if into is not None else None, runs_dir)
