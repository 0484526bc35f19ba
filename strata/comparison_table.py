"""A comparison on the terminal: as a table, and as rows for programs."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from shared.core.formatting import duration, percent, size
from shared.results.comparison import Comparison, LearningCurve
from shared.results.spec_differences import described
from strata.output import Column, FittedTable, status_text


def comparison_table(comparison: Comparison) -> FittedTable:
    """A line for each run: what tells it apart, what it reached, what it needed to the target and in all."""
    courses, goal = comparison.courses, percent(comparison.target)
    infos, firsts = [course.info for course in courses], [course.reached(comparison.target) for course in courses]
    differ = [Text(described(course.differs)) for course in courses]
    columns = [
        Column("run", [info.run for info in infos], spare=5, justify="left"),
        Column("name", [Text(info.name) for info in infos], justify="left", fold=True),
        *([Column("differs in", differ, justify="left", fold=True)] if any(c.differs for c in courses) else []),
        Column("status", [status_text(info.status, info.reason) for info in infos], 4, "left", fold=True),
        Column("accuracy", [percent(course.accuracy) for course in courses]),
        *([Column("clients", list(map(_clients, courses)), spare=2)] if any(c.clients for c in courses) else []),
        Column(f"rounds\nto {goal}", [str(first.round_no) if first else "-" for first in firsts]),
        Column(f"simulated\nto {goal}", [duration(first.simulated_s) if first else "-" for first in firsts]),
        Column(f"up\nto {goal}", [size(first.bytes_up) if first else "-" for first in firsts]),
        Column("rounds", [f"{info.rounds}/{info.num_rounds}" for info in infos], spare=2),
        Column("simulated", [duration(info.simulated_s) for info in infos], spare=3),
        Column("up", [size(info.bytes_up) for info in infos], spare=1),
        Column("down", [size(info.bytes_down) for info in infos], spare=6),
    ]
    return FittedTable(columns)


def _clients(course: LearningCurve) -> str:
    found = course.clients
    return f"{percent(found.mean)} ({percent(found.min)} to {percent(found.max)})" if found else "-"


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each run with the same columns in all; the keys in which specs differ come after its name."""
    return [_row(course, comparison.target) for course in comparison.courses]


def _row(course: LearningCurve, target: float | None) -> dict[str, Any]:
    info, first, clients = course.info, course.reached(target), course.clients
    return {
        "run": info.run,
        "name": info.name,
        **course.differs,
        "status": info.status,
        "accuracy": course.accuracy,
        "accuracy_of": course.measure,
        "loss": info.loss,
        "clients_mean": clients.mean if clients else None,
        "clients_min": clients.min if clients else None,
        "clients_max": clients.max if clients else None,
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
