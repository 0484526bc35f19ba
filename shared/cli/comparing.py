"""A comparison on the terminal: as a table, and as rows for programs."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from shared.cli.output import duration, percent, size, status_text
from shared.results import Comparison, Course
from shared.results.differences import described


def comparison_table(comparison: Comparison) -> Table:
    """A line for each run: what tells it apart, what it reached, what it needed to the target and in all."""
    differ = any(course.differs for course in comparison.courses)
    goal = percent(comparison.target)
    table = Table()
    table.add_column("run", no_wrap=True)
    for name in ("name", *(("differs in",) if differ else ()), "status"):
        table.add_column(name, overflow="fold")
    for name in ("accuracy", f"rounds\nto {goal}", f"time\nto {goal}", f"up\nto {goal}"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("rounds", "time", "up", "down"):
        table.add_column(name, justify="right", no_wrap=True)
    for course in comparison.courses:
        info, first = course.info, course.reached(comparison.target)
        needed = ("-", "-", "-")
        if first is not None:
            needed = (str(first.round_no), duration(first.simulated_s), size(first.bytes_up))
        table.add_row(
            info.run,
            Text(info.name),
            *([Text(described(course.differs))] if differ else []),
            status_text(info.status, info.reason),
            percent(course.accuracy),
            *needed,
            f"{info.rounds}/{info.num_rounds}",
            duration(info.simulated_s),
            size(info.bytes_up),
            size(info.bytes_down),
        )
    return table


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each run with the same columns in all; the keys in which specs differ come after its name."""
    return [_row(course, comparison.target) for course in comparison.courses]


def _row(course: Course, target: float | None) -> dict[str, Any]:
    info, first = course.info, course.reached(target)
    return {
        "run": info.run,
        "name": info.name,
        **course.differs,
        "status": info.status,
        "accuracy": course.accuracy,
        "accuracy_of": course.measure,
        "loss": info.loss,
        "target": target,
        "rounds_to_target": first.round_no if first else None,
        "simulated_s_to_target": first.simulated_s if first else None,
        "bytes_up_to_target": first.bytes_up if first else None,
        "rounds": info.rounds,
        "simulated_s": info.simulated_s,
        "bytes_up": info.bytes_up,
        "bytes_down": info.bytes_down,
        "model_sha256": info.model_sha256,
    }
