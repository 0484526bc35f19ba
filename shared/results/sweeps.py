"""The folder of a sweep, for people and for restarting the same sweep.

    sweep.json       the combinations, and the run of each
    results.csv      a line for each combination: the swept values and the results
    over_seeds.csv   mean and standard deviation over seeds, if seeds were swept
    compare.png      all its runs compared
    state/           of the local topology, until every combination is complete

Results of the runs themselves lie where all runs lie, one folder each.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.core.errors import Conflict, NotFound
from shared.core.field_errors import told
from shared.core.files import write_file
from shared.core.formatting import csv_text
from shared.core.records import Record
from shared.results.folder import read_run
from shared.results.spec_differences import text
from shared.run_records.metrics import ACCURACY, MetricInfo
from shared.run_records.runs import RunInfo

_COSTS = ("rounds", "bytes_up", "bytes_down", "simulated_s")
_SEED = "seed"
_SWEEP, _RESULTS, _SEEDS = "sweep.json", "results.csv", "over_seeds.csv"


class Combination(Record):
    """One combination of a sweep, with its run.

    Attributes:
        values: the values of the swept keys.
        spec_digest: digest of the spec that is sent.
        run: the run's id; None before it has one.
        status: `waiting`, or the last known status of the run; `unreadable` if it completed, but has no results here.
        reason: why the run failed or was refused.
    """

    values: dict[str, Any]
    spec_digest: str
    run: str | None = None
    status: str = "waiting"
    reason: str | None = None


class Sweep(Record):
    """A sweep: a spec, and the combinations of some of its fields' values.

    Attributes:
        sweep: a random id, by which a cloud recognises the sweep's runs.
        name: the name of the spec.
        arguments: the spec's file and `key=v1,v2`, as given on the command line.
        keys: the keys with several values.
    """

    sweep: str
    name: str
    arguments: tuple[str, ...]
    keys: tuple[str, ...]
    combinations: tuple[Combination, ...]


Row = tuple[Combination, RunInfo | None]
"""A combination with its run, as its results folder records it."""


def metrics_of(rows: Sequence[Row]) -> tuple[MetricInfo, ...]:
    """The metrics that the runs of a sweep measure; the accuracy before a run has begun."""
    measured = dict.fromkeys(metric for _, info in rows if info and info.resolved for metric in info.metrics)
    return tuple(measured) or (ACCURACY,)


def figures_of(info: RunInfo | None, metrics: Sequence[MetricInfo]) -> dict[str, float | None]:
    """The figures of a run by name: metrics, loss, costs, and the headline over clients.

    The last are the mean, minimum and maximum over clients of the model that each uses (its own, or the global model),
    on its own test samples: one measure for methods with and without personal models.
    """
    scores = {metric.label: info.value(metric) if info else None for metric in metrics}
    spread = info.spread_of_used(info.headline, own=info.accuracy_of == "mean over clients") if info else None
    clients = {f"clients_{name}": getattr(spread, name) if spread else None for name in ("mean", "min", "max")}
    return {**scores, **{name: getattr(info, name) if info else None for name in ("loss", *_COSTS)}, **clients}


class SweepFolder:
    """A sweep's folder; every noted change is written at once.

    Args:
        path: the folder; it is created with the first note.
        sweep: the sweep to begin with if the folder holds none yet.
        runs_dir: the folder of its runs' results folders.

    Raises:
        Conflict: the folder holds another sweep.
    """

    def __init__(self, path: Path, sweep: Sweep, runs_dir: Path) -> None:
        self.path, self.runs_dir = path, runs_dir
        kept = read_sweep(path)
        if kept and [each.spec_digest for each in kept.combinations] != [
            each.spec_digest for each in sweep.combinations
        ]:
            raise Conflict(f"{path} holds another sweep ({' '.join(kept.arguments)})")
        self.sweep = kept or sweep

    @property
    def state(self) -> Path:
        """The folder in which a local topology keeps its state between two starts."""
        return self.path / "state"

    def own_state(self) -> None:
        """Note the sweep before its topology makes `state`, which then is the sweep's own, to go on from and to remove.

        Raises:
            Conflict: the folder has a `state` that belongs to no sweep.
        """
        if read_sweep(self.path) is None and os.path.lexists(self.state):
            raise Conflict(f"{self.state} exists and belongs to no sweep: choose another folder with --into")
        self._write()

    def note(self, index: int, **changes: Any) -> None:
        """Change a combination."""
        combinations = list(self.sweep.combinations)
        combinations[index] = combinations[index].replace(**changes)
        self.sweep = self.sweep.replace(combinations=tuple(combinations))
        self._write()

    def _write(self) -> None:
        write_file(self.path / _SWEEP, (self.sweep.model_dump_json(indent=2) + "\n").encode())

    def todo(self) -> list[int]:
        """The combinations that are not completed, or whose results are missing, incomplete or cannot be read."""
        rows = enumerate(self.rows())
        return [i for i, (each, info) in rows if info is None or {each.status, info.status} != {"completed"}]

    def rows(self) -> list[Row]:
        """All combinations with their runs; a completed one whose results cannot be read is `unreadable`."""
        return [self._row(each) for each in self.sweep.combinations]

    def _row(self, combination: Combination) -> Row:
        folder = self.folder_of(combination)
        try:
            return combination, read_run(folder) if folder else None
        except NotFound as error:
            if combination.status != "completed":  # its run has not begun to write
                return combination, None
            return combination.replace(status="unreadable", reason=error.detail), None

    def folder_of(self, combination: Combination) -> Path | None:
        """The results folder of a combination's run, None while it has no run."""
        return self.runs_dir / combination.run if combination.run else None

    def write_tables(self) -> None:
        """Writes the results so far."""
        rows = self.rows()
        write_file(self.path / _RESULTS, csv_text(result_rows(rows)).encode())
        means = mean_rows(rows)
        if means:
            write_file(self.path / _SEEDS, csv_text(means).encode())


def read_sweep(path: Path) -> Sweep | None:
    """The sweep of a folder; None if it holds none.

    Raises:
        NotFound: it cannot be read by this version.
    """
    try:
        return Sweep.model_validate_json((path / _SWEEP).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        raise NotFound(f"{path / _SWEEP} cannot be read: {told(error)}") from None


def result_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each combination: the swept keys first, then figures, digest, run and how it ended."""
    metrics = metrics_of(rows)
    return [
        {
            **each.values,
            **figures_of(info, metrics),
            "model_sha256": info.model_sha256 if info else None,
            "run": each.run,
            "status": each.status,
            "reason": each.reason,
        }
        for each, info in rows
    ]


def over_seeds(rows: Sequence[Row]) -> list[tuple[list[Row], dict[str, Any] | None]]:
    """Rows that differ by seed alone, together, each group with its means and deviations; without seeds None.

    Only completed runs count, as `n`; the deviation is that of a sample (n - 1), None of a single run.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        others = {key: value for key, value in row[0].values.items() if key != _SEED}
        groups.setdefault(text(others), []).append(row)
    metrics = metrics_of(rows)
    return [(group, _means(group, metrics)) for group in groups.values()]


def mean_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The means and deviations alone, a row for each combination but for its seeds."""
    return [means for _, means in over_seeds(rows) if means]


def _means(group: Sequence[Row], metrics: Sequence[MetricInfo]) -> dict[str, Any] | None:
    values = group[0][0].values
    if _SEED not in values:
        return None
    figures = [figures_of(info, metrics) for each, info in group if info is not None and each.status == "completed"]
    found: dict[str, Any] = {key: value for key, value in values.items() if key != _SEED}
    found["n"] = len(figures)
    for name in figures_of(None, metrics):
        known = [value for of_run in figures if (value := of_run[name]) is not None]
        found[f"{name}_mean"] = statistics.fmean(known) if known else None
        found[f"{name}_sd"] = statistics.stdev(known) if len(known) > 1 else None
    return found
