"""The metrics that come with StrataFL, by name."""

from __future__ import annotations

from dataclasses import replace

from shared.core.plugins import Kind
from shared.training.metrics.auc import AUC
from shared.training.metrics.classification import ACCURACY, F1, PERPLEXITY, TOP_K
from shared.training.metrics.labels import OF_LABELS
from shared.training.metrics.metric import Metric
from shared.training.metrics.per_class import CONFUSION, PRECISION, RECALL
from shared.training.metrics.regression import MAE, RMSE

_ALL = (ACCURACY, TOP_K, F1, RECALL, PRECISION, CONFUSION, AUC, PERPLEXITY, MAE, RMSE)
METRICS: dict[str, Metric] = {
    one.name: replace(one, kinds=one.kinds | OF_LABELS[one.name].kinds, of_labels=OF_LABELS[one.name])
    if one.name in OF_LABELS
    else one
    for one in _ALL
}
METRIC_VALUES: Kind[Metric] = Kind(Metric, "metric", "metrics", lambda: METRICS, lambda name: METRICS[name])
"""These metrics and those of plug-ins."""
DEFAULT_METRIC: dict[str, str] = {
    "classes": ACCURACY.name,
    "tokens": ACCURACY.name,
    "labels": ACCURACY.name,
    "numbers": MAE.name,
}
"""The metric of a run whose spec names none, by what its targets are."""
