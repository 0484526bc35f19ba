"""A comparison for the terminal: as a table, and as rows for programs."""

from __future__ import annotations

from typing import Any

from shared.results.comparison import Comparison, LearningCurve
from shared.results.text_tables import comparison_columns
from strata.output import FittedTable, status_text
from strata.tables import terminal_columns


def comparison_table(comparison: Comparison) -> FittedTable:
    """One row for each run, with its status in colour."""
    statuses = [status_text(curve.info.status, curve.info.reason) for curve in comparison.curves]
    return FittedTable(terminal_columns(comparison_columns(comparison), status=statuses))


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row for each run, all with the same columns; the spec keys that differ come after the name."""
    return [_row(curve, comparison.target) for curve in comparison.curves]


def _row(curve: LearningCurve, target: float | None) -> dict[str, Any]:
    info, first, clients = curve.info, curve.reached(target), curve.clients
    return {
        "run": info.run,
        "name": info.name,
        **curve.differs,
        "status": info.status,
        curve.metric.label: curve.value,
        "accuracy_of": curve.measure,
        "loss": info.loss,
        "clients_mean": clients.mean if clients else None,
        "clients_min": clients.min if clients else None,
        "clients_max": clients.max if clients else None,
        "clients_worst_decile": clients.worst_decile if clients else None,
        "clients_variance": clients.variance if clients else None,
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
