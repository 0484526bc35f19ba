"""Metrics of targets that are several labels. Outputs are log-odds, targets 0 or 1, (n, labels)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shared.core.scores import State
from shared.core.tallies import Tally
from shared.training.metrics.auc import AUC, Auc, area_over_classes, empty, largest_error
from shared.training.metrics.classification import ACCURACY, F1, F1Params, counts_all, f1_of, one_each, share, thirds
from shared.training.metrics.metric import Metric
from shared.training.metrics.per_class import PRECISION, RECALL, OfClass, Whole
from shared.training.specs import TargetKind

LABELS: frozenset[TargetKind] = frozenset({"labels"})


def _hits(params: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    right = ((outputs > 0) == (targets > 0.5)).all(1)
    return torch.stack([torch.tensor(len(targets)), right.sum()])


def _confusion(params: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """[hits, predictions, targets] of each label, one list after another."""
    says, has = outputs > 0, targets > 0.5
    return torch.cat([(says & has).sum(0), says.sum(0), has.sum(0)])


def _is_confusion(params: Any, state: State, n: int) -> bool:
    """Whether hits, predictions and targets of each label fit into n samples."""
    return all(max(0, got + due - n) <= hit <= min(got, due) for hit, got, due in zip(*thirds(state), strict=True))


def _of_label(whole: Whole) -> Callable[[OfClass, Tensor, Tensor], Tensor]:
    """[targets or predictions, hits] of one label; of all labels the state of F1."""

    def state(params: OfClass, outputs: Tensor, targets: Tensor) -> Tensor:
        if params.label is None:
            return _confusion(None, outputs, targets)
        says, has = outputs[:, int(params.label)] > 0, targets[:, int(params.label)] > 0.5
        return torch.stack([(has if whole == "targets" else says).sum(), (says & has).sum()])

    return state


def _is_share(params: OfClass, state: State, n: int) -> bool:
    return _is_confusion(None, state, n) if params.label is None else state[1] <= state[0] <= n


def _tally(params: Auc, outputs: Tensor, targets: Tensor) -> Tally:
    columns = zip(outputs.T.numpy(), (targets > 0.5).T.numpy(), strict=True)
    return empty(params, outputs.shape[1]).counting(list(columns))


def _rates_all(params: Auc, state: Tally, n: int) -> bool:
    """Whether each label rates all samples."""
    return all(sum(row.others) + sum(row.own) == n for row in state.rows)


_OF_LABELS = (
    replace(RECALL, kinds=LABELS, state=_of_label("targets"), possible=_is_share),
    replace(PRECISION, kinds=LABELS, state=_of_label("predictions"), possible=_is_share),
    Metric(
        name=ACCURACY.name,
        description="share of samples all of whose labels are right",
        kinds=LABELS,
        state=_hits,
        value=share,
        largest=lambda params, n_labels: one_each(2),
        possible=counts_all,
        unit="share",
    ),
    Metric(
        name=F1.name,
        description=F1.description,
        kinds=LABELS,
        state=_confusion,
        value=f1_of,
        counts=F1.counts,
        largest=lambda params, n_labels: one_each(3 * n_labels),
        possible=_is_confusion,
        unit="share",
        params=F1Params,
    ),
    Metric(
        name=AUC.name,
        description="area under the ROC curve of each label, mean over labels without weights",
        kinds=LABELS,
        state=_tally,
        value=area_over_classes,
        possible=_rates_all,
        unit="share",
        params=Auc,
        tally=empty,
        error=largest_error,
    ),
)
OF_LABELS: dict[str, Metric] = {each.name: each for each in _OF_LABELS}
"""By name, the built-in metrics of targets of several labels."""
