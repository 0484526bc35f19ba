"""Metrics against scikit-learn, on random data: split into random parts and summed, and as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from shared.core.errors import BadInput, NotFinite
from shared.core.scores import AnyState, Score, State, added
from shared.core.tallies import MAX_KEYS, Row, Tally
from shared.training.description import Classes, Labels, Numbers, Target, Tokens
from shared.training.metrics.catalogue import DEFAULT_METRIC, METRICS
from shared.training.metrics.metric import FRACTION_BITS, MetricOfRun, exact_sum, metric_of_run, rows_of
from shared.training.metrics.per_class import OfClass
from shared.training.specs import TargetKind

N = 1000


def of_run(
    name: str, params: Mapping[str, Any] | None = None, kind: TargetKind = "classes", n_classes: int = 10
) -> MetricOfRun:
    return metric_of_run(METRICS[name], params or {}, target_of(kind, n_classes), "metrics.0")


def target_of(kind: TargetKind, n_classes: int) -> Target:
    if kind == "numbers":
        return Numbers()
    return Tokens(n_classes, length=4) if kind == "tokens" else (Labels if kind == "labels" else Classes)(n_classes)


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


def labels(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns log-odds that favour the four labels which a sample has a little, and these labels."""
    g = torch.Generator().manual_seed(seed)
    targets = (torch.rand(N, 4, generator=g) < torch.tensor([0.1, 0.3, 0.5, 0.8])).to(torch.float64)
    return 2 * torch.randn(N, 4, generator=g).to(torch.float64) + targets, targets


def by_parts(metric: MetricOfRun, outputs: Tensor, targets: Tensor, seed: int) -> AnyState:
    """Returns the sum of the states of random parts, in random order, as clients and batches would make it."""
    g = torch.Generator().manual_seed(seed)
    cuts = sorted(torch.randint(0, N, (7,), generator=g).tolist())
    parts = list(torch.tensor_split(torch.randperm(N, generator=g), cuts))
    states: list[dict[str, AnyState]] = [{"m": metric.state(outputs[part], targets[part])} for part in parts]
    order = torch.randperm(len(states), generator=g).tolist()
    total: dict[str, AnyState] = reduce(added, [states[place] for place in order])
    return total["m"]


def sklearn_value(name: str, logits: Tensor, labels: Tensor, k: int) -> float:
    chances, predicted = torch.softmax(logits, 1).numpy(), logits.argmax(1)
    if name == "accuracy":
        return float(sklearn_metrics.accuracy_score(labels, predicted))
    if name == "top_k":
        every = np.arange(logits.shape[1])
        return float(sklearn_metrics.top_k_accuracy_score(labels, chances, k=k, labels=every))
    if name.startswith("f1"):
        return float(sklearn_metrics.f1_score(labels, predicted, average="micro" if "micro" in name else "macro"))
    return math.exp(sklearn_metrics.log_loss(labels, chances, labels=np.arange(logits.shape[1])))


@pytest.mark.parametrize(("n_classes", "seed"), [(3, 0), (10, 1), (10, 2)])
@pytest.mark.parametrize("name", ["accuracy", "top_k", "f1", "f1 micro", "perplexity"])
def test_a_sum_over_parts_has_the_value_of_sklearn_on_the_whole(name: str, n_classes: int, seed: int) -> None:
    given: dict[str, dict[str, Any]] = {"top_k": {"k": 2}, "f1 micro": {"average": "micro"}}
    metric = of_run(name.split()[0], given.get(name), n_classes=n_classes)
    outputs, targets = classes(n_classes, seed)
    parts = by_parts(metric, outputs, targets, seed)
    assert parts == metric.state(outputs, targets)
    assert metric.value(parts) == pytest.approx(sklearn_value(name, outputs, targets, 2), rel=1e-9)
    assert metric.fault(parts, N) is None


def sklearn_auc(outputs: Tensor, targets: Tensor) -> float:
    """The mean over classes of scikit-learn's AUC by the log-odds, of two classes that of the second."""
    if outputs.shape[1] == 2:
        return float(sklearn_metrics.roc_auc_score(targets, outputs[:, 1] - outputs[:, 0]))
    others = [torch.cat([outputs[:, :at], outputs[:, at + 1 :]], 1) for at in range(outputs.shape[1])]
    odds = [outputs[:, at] - torch.logsumexp(rest, 1) for at, rest in enumerate(others)]
    return math.fsum(sklearn_metrics.roc_auc_score(targets == at, each) for at, each in enumerate(odds)) / len(odds)


@pytest.mark.parametrize(
    ("n_classes", "scale", "shift", "most"),
    [
        *((2, scale, shift, 1e-12) for scale in (1e-30, 1e-4, 1.0, 1e3, 1e30) for shift in (0.0, 40.0)),
        *((n_classes, scale, 0.0, 1e-5) for n_classes in (3, 10) for scale in (1e-3, 1.0, 100.0)),
    ],
)
def test_the_auc_is_sklearns_at_any_scale_of_log_odds(n_classes: int, scale: float, shift: float, most: float) -> None:
    outputs, targets = classes(n_classes)
    outputs[:, -1] += shift
    outputs = (outputs * scale).to(torch.float32).to(torch.float64)
    metric = of_run("auc", n_classes=n_classes)
    state = by_parts(metric, outputs, targets, seed=1)
    assert state == metric.state(outputs, targets)
    assert metric.value(state) == pytest.approx(sklearn_auc(outputs, targets), abs=most)
    assert metric.error(state) == 0
    assert metric.fault(state, N) is None


@pytest.mark.parametrize(("bins", "bound"), [(16, 0.25), (64, 0.05), (400, 0.01)])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_with_few_bins_the_auc_tells_a_bound_of_its_error(n_classes: int, bins: int, bound: float) -> None:
    metric = of_run("auc", {"bins": bins}, n_classes=n_classes)
    outputs, targets = classes(n_classes)
    states = [by_parts(metric, outputs, targets, seed) for seed in range(3)]
    assert states == [metric.state(outputs, targets)] * 3  # also where parts were coarser than others
    off = abs((metric.value(states[0]) or 0) - sklearn_auc(outputs, targets))
    assert off <= metric.error(states[0]) + 1e-12
    assert 0 < metric.error(states[0]) < bound
    assert metric.fault(states[0], N) is None


def test_the_auc_by_hand() -> None:
    """Of two positives and two negatives, one pair is in the wrong order and one tied."""
    metric = of_run("auc", n_classes=2)
    odds = torch.tensor([2.5, 0.5, 0.5, 1.5], dtype=torch.float64)
    logits = torch.stack([torch.zeros(4, dtype=torch.float64), odds], 1)
    state = metric.state(logits, torch.tensor([1, 1, 0, 0]))
    assert metric.value(state) == (1 + 1 + 0.5 + 0) / 4
    assert metric.value(metric.state(logits, torch.tensor([1, 1, 1, 1]))) is None  # nothing to compare with
    sure = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], dtype=torch.float64)
    assert metric.value(metric.state(sure, torch.tensor([0, 1]))) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Row(keys=(1,), others=(1,), own=(1,))], None),
        ([Row(keys=(2, 1), others=(1, 0), own=(0, 1))], "keys that do not rise"),
        ([Row(keys=(1, 2), others=(1, 0), own=(1, 0))], "keys without numbers"),
        ([Row(keys=(1, 2), others=(1,), own=(0, 1))], "rows of 2, 1 and 2 numbers"),
        ([Row(keys=(1,), others=(2,), own=(1,))], "cannot be that of 2 predictions"),
        ([Row(), Row()], "2 rows of 8 keys, not 1 of 8"),
    ],
)
def test_a_tally_that_cannot_be_is_refused(rows: list[Row], message: str | None) -> None:
    fault = of_run("auc", {"bins": 8}, n_classes=2).fault(Tally(most=8, rows=tuple(rows)), 2)
    assert (fault is None) if message is None else message in (fault or "")
    assert of_run("auc", n_classes=2).fault((1, 1), 2) is not None
    assert of_run("f1", n_classes=2).fault(Tally.empty(8, 1), 0) is not None


OF_LABELS: list[Any] = [("f1", {"average": "micro"}), ("recall", {"label": 2}), ("precision", {"label": 3})]
OF_LABELS += [(name, {}) for name in ("accuracy", "f1", "auc", "recall", "precision")]


@pytest.mark.parametrize(("name", "params"), OF_LABELS)
def test_metrics_of_several_labels_are_sklearns(name: str, params: dict[str, Any]) -> None:
    metric = of_run(name, params, kind="labels", n_classes=4)
    outputs, targets = labels()
    which: dict[str, Any] = {"labels": [params["label"]] if "label" in params else None, "average": "macro"}
    known = {
        "recall": lambda: sklearn_metrics.recall_score(targets, outputs > 0, **which),
        "precision": lambda: sklearn_metrics.precision_score(targets, outputs > 0, **which),
        "accuracy": lambda: sklearn_metrics.accuracy_score(targets, outputs > 0),
        "f1": lambda: sklearn_metrics.f1_score(targets, outputs > 0, average=params.get("average", "macro")),
        "auc": lambda: sklearn_metrics.roc_auc_score(targets, outputs),
    }
    state = by_parts(metric, outputs, targets, seed=1)
    assert state == metric.state(outputs, targets)
    assert metric.value(state) == pytest.approx(known[name](), rel=1e-9)
    assert metric.fault(state, N) is None


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


@pytest.mark.parametrize(
    ("name", "scale"), [("mae", 1e-300), *product(("mae", "rmse"), (1e-140, 1e-12, 1, 2.0**21, 1e30, 1e150))]
)
def test_errors_of_any_size_are_measured(name: str, scale: float) -> None:
    metric = of_run(name, kind="numbers", n_classes=0)
    outputs, targets = numbers()
    state = by_parts(metric, outputs * scale, targets * scale, seed=0)
    once, zero = metric.value(metric.state(outputs, targets)), torch.zeros(N, 1, dtype=torch.float64)
    assert metric.value(state) == pytest.approx((once or 0) * scale, rel=1e-12)
    assert state == metric.state((outputs - targets) * 0 + outputs * scale - targets * scale, zero)
    assert metric.fault(state, N) is None
    assert Score.model_validate_json(Score(n=N, n_correct=0, loss_sum=0, states={"m": state}).model_dump_json())


def test_a_sum_of_doubles_is_exact() -> None:
    """Against fractions; in floating point most of these terms are lost."""
    terms = [1e308, -1e308, 2.0**-1074, 0.1, 2.0**60, -(2.0**-1022), 3e-310, 1e17, 0.0]
    total = exact_sum(torch.tensor(terms, dtype=torch.float64), "an error")
    assert Fraction(total, 2**FRACTION_BITS) == sum(map(Fraction, terms))
    with pytest.raises(NotFinite, match="an error is NaN"):
        exact_sum(torch.tensor([math.nan], dtype=torch.float64), "an error")


@pytest.mark.parametrize(
    ("target", "outputs", "y", "n", "width"),
    [
        (Classes(3), torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64), 5, 3),
        (Tokens(3, 4, padding=0), torch.zeros(2, 4, 3), torch.tensor([[1, 2, 0, 0], [1, 0, 0, 0]]), 3, 3),
        (Tokens(3, 4), torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64), 8, 3),
        (Labels(3), torch.zeros(5, 3), torch.zeros(5, 3), 5, 3),
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
    ("name", "params", "state", "n", "message"),
    [
        ("accuracy", {}, (5, 6), 5, "whose number 1 is 6, not 0 to 5"),
        ("accuracy", {}, (4, 4), 5, "cannot be that of 5 predictions"),
        ("accuracy", {}, (5,), 5, "of 1 numbers, not 2"),
        ("accuracy", {}, (5, -1), 5, "whose number 1 is -1"),
        ("f1", {}, (1, 0, 2, 0, 1, 1), 2, None),
        ("f1", {}, (2, 0, 2, 0, 1, 1), 2, "cannot be"),  # more hits than targets of the class
        ("f1", {}, (1, 0, 1, 0, 1, 1), 2, "cannot be"),  # one prediction is missing
        ("perplexity", {}, (2, 2**2099 + 1), 2, "whose number 1 is"),
        ("top_k", {}, (2, 2), 2, None),
        ("recall", {"label": 1}, (3, 4), 5, "cannot be that of 5"),
        ("precision", {"label": 1}, (6, 1), 5, "whose number 0 is 6"),
        ("recall", {}, (2, 0, 1, 1, 2, 3), 5, "cannot be that of 5"),
        ("confusion", {}, (2, 1, 1, 2), 5, "cannot be that of 5"),
        ("confusion", {}, (2, 1, 1), 5, "of 3 numbers, not 4"),
    ],
)
def test_odd_states_are_refused(name: str, params: dict[str, Any], state: State, n: int, message: str | None) -> None:
    fault = of_run(name, params, n_classes=2).fault(state, n)
    assert (fault is None) if message is None else message in (fault or "")


@pytest.mark.parametrize(
    ("name", "params", "kind", "n_classes", "field", "message"),
    [
        ("mae", {}, "classes", 10, "metrics.0", "needs targets that are numbers, not classes"),
        ("auc", {}, "numbers", 0, "metrics.0", "needs targets that are classes or labels or tokens"),
        ("top_k", {"k": 0}, "classes", 10, "metrics.0.params.k", "at least 1"),
        ("rmse", {"k": 1}, "numbers", 0, "metrics.0.params", "rmse has no parameters"),
        ("perplexity", {}, "labels", 3, "metrics.0", "needs targets that are classes or tokens, not labels"),
        ("auc", {"bins": 1024}, "classes", 200, "metrics.0", f"the limit is {MAX_KEYS}"),
        ("recall", {"label": "ill"}, "classes", 10, "metrics.0.params.label", "no class 'ill'; the data have no names"),
        ("recall", {"label": 10}, "classes", 10, "metrics.0.params.label", "the data have the classes 0 to 9"),
        ("confusion", {}, "classes", 1000, "metrics.0", "1000 x 1000 classes; the most is 256: recall, precision and"),
    ],
)
def test_a_metric_that_a_run_cannot_measure_is_refused(
    name: str, params: dict[str, Any], kind: TargetKind, n_classes: int, field: str, message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        of_run(name, params, kind, n_classes)
    assert refused.value.field == field
    assert message in refused.value.detail


def test_a_metric_is_called_by_what_differs_and_counts_what_it_needs() -> None:
    assert of_run("top_k").label == of_run("top_k", {"k": 5}).label == "top_k"
    assert of_run("top_k", {"k": 3}).label == "top_k(k=3)"
    assert [len(of_run(name, n_classes=200).largest) for name in ("recall", "confusion")] == [600, 40_000]
    assert all(kind in METRICS[name].kinds for kind, name in DEFAULT_METRIC.items())
    tied, targets = torch.zeros(3, 4, dtype=torch.float64), torch.tensor([0, 1, 3])
    for name, params, n in (("accuracy", {}, 1), ("top_k", {"k": 1}, 1), ("top_k", {"k": 2}, 2)):
        assert of_run(name, params, n_classes=4).state(tied, targets) == (3, n), "the first class comes first"


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_without_predictions_has_no_value(name: str) -> None:
    metric = of_run(name, kind=next(iter(METRICS[name].kinds)), n_classes=4)
    nothing = metric.tally or (0,) * len(metric.largest)
    assert metric.value(nothing) is None
    assert metric.fault(nothing, 0) is None
    assert metric.metric.name == name


# ---- by class


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("n_classes", [2, 10])
def test_recall_precision_and_the_confusion_matrix_are_those_of_sklearn(n_classes: int, seed: int) -> None:
    outputs, targets = classes(n_classes, seed)
    targets[targets == 1] = 0  # no sample is of class 1, which is predicted
    outputs[:, n_classes - 1] -= 1e3  # and the last class is never predicted
    predicted, every = outputs.argmax(1), np.arange(n_classes)
    state = by_parts(of_run("confusion", n_classes=n_classes), outputs, targets, seed)
    counts = of_run("confusion", n_classes=n_classes).counts(state)
    assert counts is not None
    assert np.array_equal(counts.confusion, sklearn_metrics.confusion_matrix(targets, predicted, labels=every))
    scores = {"recall": sklearn_metrics.recall_score, "precision": sklearn_metrics.precision_score}
    for name, of in scores.items():
        known: Any = {"average": None, "zero_division": np.nan, "labels": every}
        expected = [None if np.isnan(share) else share for share in of(targets, predicted, **known)]
        assert None in expected
        metric = of_run(name, n_classes=n_classes)
        parts = by_parts(metric, outputs, targets, seed)
        assert metric.value(parts) == pytest.approx(of(targets, predicted, **(known | {"average": "macro"})))
        assert metric.fault(parts, N) is None
        assert metric.counts(parts) == counts.model_copy(update={"confusion": ()})
        assert [getattr(counts, name)(label) for label in every] == pytest.approx(expected)
        for label, share in enumerate(expected):
            single = of_run(name, {"label": label}, n_classes=n_classes)
            assert single.label == f"{name}(label={label})"
            assert single.value(by_parts(single, outputs, targets, seed)) == pytest.approx(share)


def test_a_class_is_named_by_its_name_or_its_number() -> None:
    classes = ("ill", "well\u2028", "7")
    recall = METRICS["recall"]
    named = [metric_of_run(recall, {"label": each}, Classes(3), "metrics.0", classes) for each in (*classes, 0)]
    assert [each.params for each in named] == [OfClass(label=number) for number in (0, 1, 2, 0)]
    assert [each.label for each in named] == [f"recall(label={label})" for label in ("ill", 1, 7, 0)]
    with pytest.raises(BadInput, match="there is no class 'Ill'; the data have ill, well"):
        metric_of_run(recall, {"label": "Ill"}, Classes(3), "metrics.0", classes)
