"""Metrics against scikit-learn, on random data: split into random parts and summed, and as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from shared.core.errors import BadInput, NotFinite, OutOfBound
from shared.core.scores import MAX_STATE, State, added
from shared.training.description import Classes, Numbers, Target, Tokens
from shared.training.metrics.auc import Auc, largest_error
from shared.training.metrics.catalogue import DEFAULT_METRIC, METRICS
from shared.training.metrics.metric import FRACTION_BITS, MetricOfRun, fixed_sum, metric_of_run, rows_of
from shared.training.specs import TargetKind

N = 1000


def of_run(
    name: str, params: Mapping[str, Any] | None = None, kind: TargetKind = "classes", n_classes: int = 10
) -> MetricOfRun:
    return metric_of_run(METRICS[name], params or {}, target_of(kind, n_classes), "metrics.0")


def target_of(kind: TargetKind, n_classes: int) -> Target:
    if kind == "classes":
        return Classes(n_classes)
    return Numbers() if kind == "numbers" else Tokens(n_classes, length=4)


def classes(n_classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns logits that favour the label a little, and labels of unequal frequency."""
    g = torch.Generator().manual_seed(seed)
    labels = (torch.rand(N, generator=g).square() * n_classes).to(torch.int64)
    logits = 2 * torch.randn(N, n_classes, generator=g)
    logits[torch.arange(N), labels] += 1.5
    return logits.to(torch.float64), labels


def numbers(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    targets = 100 * torch.randn(N, 1, generator=g)
    return (targets + torch.randn(N, 1, generator=g)).to(torch.float64), targets.to(torch.float64)


def by_parts(metric: MetricOfRun, outputs: Tensor, targets: Tensor, seed: int) -> State:
    """Returns the sum of the states of random parts, in random order, as clients and batches would make it."""
    g = torch.Generator().manual_seed(seed)
    cuts = sorted(torch.randint(0, N, (7,), generator=g).tolist())
    parts = list(torch.tensor_split(torch.randperm(N, generator=g), cuts))
    states: list[dict[str, State]] = [{"m": metric.state(outputs[part], targets[part])} for part in parts]
    order = torch.randperm(len(states), generator=g).tolist()
    total: dict[str, State] = reduce(added, [states[place] for place in order])
    return total["m"]


def sklearn_value(name: str, logits: Tensor, labels: Tensor, k: int) -> float:
    chances, predicted = torch.softmax(logits, 1).numpy(), logits.argmax(1)
    if name == "accuracy":
        return float(sklearn_metrics.accuracy_score(labels, predicted))
    if name == "top_k":
        every = np.arange(logits.shape[1])
        return float(sklearn_metrics.top_k_accuracy_score(labels, chances, k=k, labels=every))
    if name == "f1":
        return float(sklearn_metrics.f1_score(labels, predicted, average="macro"))
    return math.exp(sklearn_metrics.log_loss(labels, chances, labels=np.arange(logits.shape[1])))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_classes", [3, 10])
@pytest.mark.parametrize("name", ["accuracy", "top_k", "f1", "perplexity"])
def test_a_sum_over_random_parts_has_the_value_that_sklearn_finds_on_the_whole(
    name: str, n_classes: int, seed: int
) -> None:
    metric = of_run(name, {"k": 2} if name == "top_k" else {}, n_classes=n_classes)
    outputs, targets = classes(n_classes, seed)
    parts = by_parts(metric, outputs, targets, seed)
    assert parts == metric.state(outputs, targets)
    assert metric.value(parts) == pytest.approx(sklearn_value(name, outputs, targets, 2), rel=1e-9)
    assert metric.fault(parts, N) is None


@pytest.mark.parametrize("bins", [16, 256, 2048])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_the_auc_differs_from_sklearns_by_no_more_than_its_bins_allow(n_classes: int, bins: int) -> None:
    metric = of_run("auc", {"bins": bins}, n_classes=n_classes)
    outputs, targets = classes(n_classes)
    chances = torch.softmax(outputs, 1).numpy()
    exact = sklearn_metrics.roc_auc_score(targets, chances[:, 1] if n_classes == 2 else chances, multi_class="ovr")
    state = by_parts(metric, outputs, targets, seed=1)
    assert state == metric.state(outputs, targets)
    bound = largest_error(Auc(bins=bins), state)
    assert abs((metric.value(state) or 0) - exact) <= bound + 1e-12
    assert 0 < bound < 4 / bins  # log-odds of these samples fall into about half of the bins
    assert metric.fault(state, N) is None


def test_the_auc_of_log_odds_that_are_alike_within_bins_is_exact() -> None:
    """By hand: of two positives and two negatives, one pair is in the wrong order and one tied."""
    metric = of_run("auc", {"bins": 32}, n_classes=2)  # bins are 1 wide
    odds = torch.tensor([2.5, 0.5, 0.5, 1.5], dtype=torch.float64)
    logits = torch.stack([torch.zeros(4, dtype=torch.float64), odds], 1)
    state = metric.state(logits, torch.tensor([1, 1, 0, 0]))
    assert metric.value(state) == (1 + 1 + 0.5 + 0) / 4
    assert metric.value(metric.state(logits, torch.tensor([1, 1, 1, 1]))) is None  # nothing to compare with
    sure = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.float64)  # log-odds are infinite in float64
    assert metric.value(metric.state(sure, torch.tensor([0, 1]))) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["mae", "rmse"])
def test_errors_of_numbers_add_up_exactly_to_sklearns(name: str, seed: int) -> None:
    metric = of_run(name, kind="numbers", n_classes=0)
    outputs, targets = numbers(seed)
    state = by_parts(metric, outputs, targets, seed)
    assert state == metric.state(outputs, targets)
    known = {"mae": sklearn_metrics.mean_absolute_error, "rmse": sklearn_metrics.root_mean_squared_error}
    assert metric.value(state) == pytest.approx(known[name](targets, outputs), rel=1e-10)
    assert metric.fault(state, N) is None


def test_errors_of_several_numbers_are_means_over_them() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 4.0]])
    for name, value in (("mae", (1.5 + 2) / 2), ("rmse", math.sqrt((2.5 + 8) / 2))):
        metric = of_run(name, kind="numbers", n_classes=0)
        assert metric.value(metric.state(outputs.double(), targets.double())) == pytest.approx(value, rel=1e-12)


def test_of_equal_logits_the_first_class_is_the_more_likely_one() -> None:
    logits, labels = torch.zeros(3, 4, dtype=torch.float64), torch.tensor([0, 1, 3])
    assert of_run("accuracy", n_classes=4).state(logits, labels) == (3, 1)
    assert of_run("top_k", {"k": 1}, n_classes=4).state(logits, labels) == (3, 1)
    assert of_run("top_k", {"k": 2}, n_classes=4).state(logits, labels) == (3, 2)


def test_a_sum_of_numbers_is_exact_over_eighty_bits() -> None:
    """In float64, 2^39 + 2^-40 loses the small term."""
    whole, steps = fixed_sum(torch.tensor([2.0**39, 2.0**-40, 0.25], dtype=torch.float64), "an error")
    assert (whole, steps) == (2**39, 1 + 2 ** (FRACTION_BITS - 2))
    with pytest.raises(OutOfBound, match="an error of 2"):
        fixed_sum(torch.tensor([2.0**41], dtype=torch.float64), "an error")
    with pytest.raises(NotFinite, match="an error is NaN"):
        fixed_sum(torch.tensor([math.nan], dtype=torch.float64), "an error")


@pytest.mark.parametrize(
    ("target", "outputs", "y", "n", "width"),
    [
        (Classes(3), torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64), 5, 3),
        (Tokens(3, 4, padding=0), torch.zeros(2, 4, 3), torch.tensor([[1, 2, 0, 0], [1, 0, 0, 0]]), 3, 3),
        (Tokens(3, 4), torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64), 8, 3),
        (Numbers(), torch.zeros(5), torch.zeros(5, 1), 5, 1),
        (Numbers((2, 2)), torch.zeros(5, 4), torch.zeros(5, 2, 2), 5, 4),
    ],
)
def test_each_prediction_has_a_row(target: Target, outputs: Tensor, y: Tensor, n: int, width: int) -> None:
    assert target.n_predictions(y) == n
    rows, due = rows_of(target, outputs, y)
    assert rows.shape == (n, width)
    assert len(due) == n


@pytest.mark.parametrize(
    ("name", "state", "n", "message"),
    [
        ("accuracy", (5, 6), 5, "whose number 1 is 6, not 0 to 5"),
        ("accuracy", (4, 4), 5, "cannot be that of 5 predictions"),
        ("accuracy", (5,), 5, "of 1 numbers, not 2"),
        ("accuracy", (5, -1), 5, "whose number 1 is -1"),
        ("f1", (1, 0, 2, 0, 1, 1), 2, None),
        ("f1", (2, 0, 2, 0, 1, 1), 2, "cannot be"),  # more hits than targets of the class
        ("f1", (1, 0, 1, 0, 1, 1), 2, "cannot be"),  # one prediction is missing
        ("auc", (1, 0, 0, 1), 2, None),
        ("auc", (1, 1, 0, 1), 2, "cannot be"),
        ("perplexity", (2, 2**41 + 1, 0), 2, "whose number 1 is"),
        ("top_k", (2, 2), 2, None),
    ],
)
def test_a_state_that_cannot_be_is_refused(name: str, state: State, n: int, message: str | None) -> None:
    fault = of_run(name, {"bins": 2} if name == "auc" else {}, n_classes=2).fault(state, n)
    assert (fault is None) if message is None else message in (fault or "")


@pytest.mark.parametrize(
    ("name", "params", "kind", "n_classes", "field", "message"),
    [
        ("mae", {}, "classes", 10, "metrics.0", "needs targets that are numbers, not classes"),
        ("auc", {}, "numbers", 0, "metrics.0", "needs targets that are classes or tokens"),
        ("top_k", {"k": 0}, "classes", 10, "metrics.0.params.k", "at least 1"),
        ("f1", {"average": "micro"}, "classes", 10, "metrics.0.params", "f1 has no parameters"),
        ("auc", {"bins": 1024}, "classes", 200, "metrics.0", f"the limit is {MAX_STATE}"),
    ],
)
def test_a_metric_that_a_run_cannot_measure_is_refused(
    name: str, params: dict[str, Any], kind: TargetKind, n_classes: int, field: str, message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        of_run(name, params, kind, n_classes)
    assert refused.value.field == field
    assert message in refused.value.detail


def test_labels_name_the_parameters_that_differ() -> None:
    assert of_run("top_k").label == of_run("top_k", {"k": 5}).label == "top_k"
    assert of_run("top_k", {"k": 3}).label == "top_k(k=3)"


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_without_predictions_has_no_value(name: str) -> None:
    metric = of_run(name, kind=next(iter(METRICS[name].kinds)), n_classes=4)
    nothing = (0,) * len(metric.largest)
    assert metric.value(nothing) is None
    assert metric.fault(nothing, 0) is None
    assert metric.metric.name == name


def test_each_kind_of_target_has_a_metric() -> None:
    assert all(kind in METRICS[name].kinds for kind, name in DEFAULT_METRIC.items())
