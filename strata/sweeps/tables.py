"""Tables of a sweep: its plan and its results."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from shared.core.formatting import duration, number, size
from shared.results.spec_differences import text
from shared.results.sweeps import Combination, Row, Sweep, figures_of, metrics_of, over_seeds
from shared.run_records.metrics import MetricInfo
from shared.run_records.runs import RunInfo
from strata.output import Column, FittedTable, status_text

_REASON = 80
"""Longest reason, in characters, in the table; `results.csv` has the whole text."""

_SHOWN: dict[str, Any] = {
    "loss": number,
    "rounds": lambda value: number(value, 0),
    "bytes_up": lambda value: "-" if value is None else size(value),
    "bytes_down": lambda value: "-" if value is None else size(value),
    "simulated_s": duration,
}
_TITLES = (("loss", 3), ("rounds", 4), ("up", 0), ("down", 6), ("simulated", 2))
"""Headings of those figures, and how dispensable each is in a narrow terminal (`Column.spare`)."""


@dataclass(frozen=True)
class _Figures:
    """The figures of a sweep's rows: its metrics, then loss and costs."""

    metrics: tuple[MetricInfo, ...]

    @property
    def titles(self) -> list[tuple[str, int]]:
        return [(metric.label, int(place > 0)) for place, metric in enumerate(self.metrics)] + list(_TITLES)

    def texts(self, values: Mapping[str, Any], suffix: str = "") -> list[str]:
        scores = [metric.text(values[f"{metric.label}{suffix}"]) for metric in self.metrics]
        return [*scores, *(show(values[f"{name}{suffix}"]) for name, show in _SHOWN.items())]


def plan_table(sweep: Sweep) -> Table:
    """The combinations with their current status, before the sweep runs."""
    table = Table("", *sweep.keys, "status", "run")
    for index, each in enumerate(sweep.combinations, start=1):
        values = [Text(text(value)) for value in each.values.values()]
        table.add_row(str(index), *values, status_text(each.status, each.reason), each.run or "-")
    return table


def plan_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """The rows of `plan_table`, as dictionaries with equal keys."""
    return [
        {**each.values, "status": each.status, "reason": each.reason, "run": each.run} for each in sweep.combinations
    ]


def results_table(sweep: Sweep, rows: Sequence[Row]) -> FittedTable:
    """One row per combination; runs that differ only in the seed are grouped, with mean and deviation below."""
    lines, figures = list[list[str | Text]](), _Figures(metrics_of(rows))
    bold, lined = set[int](), set[int]()
    for group, means in over_seeds(rows):
        lines += [_result(each, info, figures) for each, info in group]
        if means:
            bold |= {len(lines), len(lines) + 1}
            lines += [
                _over_seeds(sweep, means, "mean", f"mean of {means['n']}", figures),
                _over_seeds(sweep, means, "sd", "± sd", figures),
            ]
            lined.add(len(lines) - 1)
    n_keys, rest = len(sweep.keys), len(sweep.keys) + len(figures.titles)
    cells = list(zip(*lines, strict=True)) or [()] * (rest + 3)
    columns = [Column(key.replace(".", ".\n"), own) for key, own in zip(sweep.keys, cells, strict=False)]
    columns += [Column(name, own, spare) for (name, spare), own in zip(figures.titles, cells[n_keys:rest], strict=True)]
    columns += [
        Column("digest", cells[rest], 7, "left"),
        Column("run", cells[rest + 1], 5, "left"),
        Column("status", cells[rest + 2], 1, "left", fold=True),
    ]
    return FittedTable(columns, bold=frozenset(bold), lined=frozenset(lined))


def _result(each: Combination, info: RunInfo | None, figures: _Figures) -> list[str | Text]:
    """The row of a combination, with the figures of its run if it has one."""
    return [
        *(Text(text(value)) for value in each.values.values()),
        *figures.texts(figures_of(info, figures.metrics)),
        (info.model_sha256 or "-")[:12] if info else "-",
        each.run or "-",
        status_text(each.status, textwrap.shorten(each.reason or "", _REASON, placeholder=" …")),
    ]


def _over_seeds(sweep: Sweep, means: Mapping[str, Any], kind: str, word: str, figures: _Figures) -> list[str | Text]:
    """The row of the means or of the standard deviations over seeds."""
    values = [Text(word if key == "seed" else text(means[key])) for key in sweep.keys]
    return [*values, *figures.texts(means, f"_{kind}"), "", "", ""]
