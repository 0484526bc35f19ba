"""A sweep on the terminal: what it is made of, and what came out of it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from shared.cli.output import duration, number, percent, size, status_text
from shared.results.differences import text
from shared.results.sweeps import FIGURES, Row, Sweep, over_seeds

_REASON = 80
"""Letters of a reason in the table; `results.csv` has all."""

_SHOWN: dict[str, Any] = {
    "accuracy": percent,
    "loss": number,
    "rounds": lambda value: number(value, 0),
    "bytes_up": lambda value: "-" if value is None else size(value),
    "bytes_down": lambda value: "-" if value is None else size(value),
    "simulated_s": duration,
}
_TITLES = ("accuracy", "loss", "rounds", "up", "down", "simulated")


def plan_table(sweep: Sweep) -> Table:
    """The combinations and how each stands, before anything is run."""
    table = Table("", *sweep.keys, "status", "run")
    for index, each in enumerate(sweep.combinations, start=1):
        values = [Text(text(value)) for value in each.values.values()]
        table.add_row(str(index), *values, status_text(each.status, each.reason), each.run or "-")
    return table


def plan_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """The same as rows of equal columns."""
    return [
        {**each.values, "status": each.status, "reason": each.reason, "run": each.run} for each in sweep.combinations
    ]


def results_table(sweep: Sweep, rows: Sequence[Row]) -> Table:
    """A line for each combination; runs that differ by seed alone stand together, above their mean and deviation."""
    table = Table()
    for key in sweep.keys:
        table.add_column(Text(key), justify="right")
    for title in _TITLES:
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("digest", "run", "status"):
        table.add_column(title, overflow="fold")
    for group, means in over_seeds(rows):
        for each, info in group:
            table.add_row(
                *(Text(text(value)) for value in each.values.values()),
                *(_SHOWN[name](getattr(info, name) if info else None) for name in FIGURES),
                (info.model_sha256 or "-")[:12] if info else "-",
                each.run or "-",
                status_text(each.status, textwrap.shorten(each.reason or "", _REASON, placeholder=" …")),
            )
        if means:
            for kind, word in (("mean", f"mean of {means['n']}"), ("sd", "± sd")):
                values = [word if key == "seed" else text(means[key]) for key in sweep.keys]
                figures = [_SHOWN[name](means[f"{name}_{kind}"]) for name in FIGURES]
                table.add_row(*map(Text, values), *figures, "", "", "", style="bold", end_section=kind == "sd")
    return table
