"""The scores of a run by group of samples (writers, hospitals, domains): rows by the names of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.core.formatting import number
from shared.results.text_tables import TextColumn
from shared.run_records.groups import GLOBAL_ON, OWN_OF, RECEIVED_OF
from shared.run_records.metrics import MetricInfo
from shared.run_records.rounds import Evaluation
from shared.run_records.runs import RunInfo

_MODELS = (("", GLOBAL_ON), ("received_", RECEIVED_OF), ("own_", OWN_OF))
"""Whose scores a column has, by what its name begins with: those of the global model have the metrics' plain names."""

GROUPS_NOTE = (
    "the global model on each group's test samples; clients: those with samples of this group alone, over which the "
    "scores of the models received and of their own are means"
)


def group_rows(info: RunInfo) -> list[dict[str, Any]]:
    """A row for each group, after the last round; empty for data without groups.

    `n_test` are the predictions on the group's test samples, by which the global model is scored; `n_clients` the
    clients with samples of this group alone, over which the scores of models received and of own models are means.
    """
    found: dict[str, dict[str, Any]] = {}
    for key, score in info.final.items():
        for begin, prefix in _MODELS:
            if key.startswith(prefix):
                row = found.setdefault(key.removeprefix(prefix), {})
                row |= {
                    "n_test" if prefix == GLOBAL_ON else "n_clients": score.n,
                    **_values(begin, score, info.metrics),
                }
    columns = [name for name in _columns(info.metrics) if any(row.get(name) is not None for row in found.values())]
    return [{"group": group, **{name: row.get(name) for name in columns}} for group, row in found.items()]


def _values(begin: str, score: Evaluation, metrics: Sequence[MetricInfo]) -> dict[str, float | None]:
    return {**{f"{begin}{each.label}": score.value(each) for each in metrics}, f"{begin}loss": score.loss}


def _columns(metrics: Sequence[MetricInfo]) -> list[str]:
    names = [f"{begin}{name}" for begin, _ in _MODELS for name in (*(each.label for each in metrics), "loss")]
    return ["n_test", "n_clients", *names]


def group_columns(info: RunInfo) -> list[TextColumn]:
    """The rows as text; without a column if there are none."""
    rows = group_rows(info)
    metrics = {f"{begin}{each.label}": each for begin, _ in _MODELS for each in info.metrics}
    return [
        TextColumn(
            name.replace("n_", "").replace("_", " ") if name not in metrics else _heading(name, metrics[name]),
            [_text(row[name], metrics.get(name)) for row in rows],
            spare=0 if name == "group" or name in metrics else 1,
            words=name == "group",
            fold=name == "group",
        )
        for name in (rows[0] if rows else ())
    ]


def _heading(name: str, metric: MetricInfo) -> str:
    return name.removesuffix(metric.label).replace("_", " ") + metric.label


def _text(value: Any, metric: MetricInfo | None) -> str:
    if metric is not None:
        return metric.text(value)
    return number(value) if isinstance(value, float) else "-" if value is None else str(value)
