"""Losses and metrics of a spec: what is known, what fits, and what another process may claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from shared.core.errors import BadInput
from shared.core.scores import Score
from shared.federation.scoring import Scoring, scoring_of
from shared.federation.scoring_trials import try_scoring
from shared.federation.spec_parser import parse_spec
from shared.training.description import Classes, Labels, Numbers, Target, Tokens
from shared.training.losses import DEFAULT_LOSS, LOSSES, CrossEntropy, Loss, LossOfRun, loss_of_run
from shared.training.specs import TargetKind


def scoring(kind: TargetKind = "classes", n_classes: int = 3, **fields: Any) -> Scoring:
    targets: dict[str, Target] = {
        "classes": Classes(n_classes), "numbers": Numbers(), "tokens": Tokens(n_classes, length=2)
    }  # fmt: skip
    return scoring_of(parse_spec(fields), targets[kind])


def test_by_default_the_kind_of_target_decides() -> None:
    assert scoring().headline.label == "accuracy"
    assert scoring("numbers", 0).headline.label == "mae"
    assert scoring("tokens").headline.label == "accuracy"
    assert all(scoring(kind).loss is None for kind in ("classes", "numbers", "tokens"))
    assert scoring(loss="cross_entropy").loss is None
    named = scoring(loss={"name": "cross_entropy", "params": {"smoothing": 0.1}}).loss
    assert named is not None
    assert named.params == CrossEntropy(smoothing=0.1)


def test_a_spec_without_loss_and_metrics_does_not_mention_them() -> None:
    assert not {"loss", "metrics"} & parse_spec({}).model_dump().keys()
    named = parse_spec({"loss": "focal", "metrics": "f1"}).model_dump(mode="json")
    assert (named["loss"], named["metrics"]) == ({"name": "focal"}, [{"name": "f1"}])


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"metrics": ["f2"]}, "metrics.0", "unknown metric 'f2'"),
        ({"metrics": ["f1", "f1"]}, "metrics", "f1 comes twice"),
        ({"metrics": ["top_k", {"name": "top_k", "params": {"k": 5}}]}, "metrics.1", "top_k comes twice"),
        ({"metrics": [{"name": "auc", "params": {"bins": 1}}]}, "metrics.0.params.bins", "at least 2"),
        ({"metrics": ["mae"]}, "metrics.0", "needs targets that are numbers, not classes"),
        ({"metrics": ["f1"] * 20}, "metrics", "16"),
        ({"loss": "hinge"}, "loss", "unknown loss 'hinge'"),
        ({"loss": "mse"}, "loss", "needs targets that are numbers, not classes"),
        ({"loss": {"name": "focal", "params": {"gamma": -1}}}, "loss.params.gamma", "at least 0"),
        ({"loss": "focal", "algorithm": "fedser"}, "loss", "fedser has a local objective of its own"),
        ({"loss": "focal", "algorithm": "moon"}, "loss", "moon has a local objective of its own"),
        ({"loss": "focal", "algorithm": {"name": "bofl", "local": "fedser"}}, "loss", "fedser has a local"),
        ({"loss": "focal", "vectorised": {"width": 4}}, "vectorised", "own loss only"),
        ({"stop": {"target": 0.9, "metric": "f1"}}, "stop.metric", "unknown metric of this run 'f1'"),
        ({"metrics": ["f1"], "stop": {"accuracy": 0.9}}, "stop.accuracy", "stop.target is a value of that"),
    ],
)
def test_what_a_run_cannot_score_is_refused_by_field_and_cause(spec: Any, field: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        scoring(**spec)
    assert refused.value.field == field
    assert message in refused.value.detail


def score(**changes: Any) -> Score:
    return Score(**{"n": 4, "n_correct": 2, "loss_sum": 1.0, "states": {"f1": (1, 1, 0, 2, 1, 1, 2, 1, 1)}, **changes})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("own", {}, None),
        ("own", {"n": 9}, "of 9 predictions, at most 8 are possible"),
        ("own", {"n_correct": 5}, "with 5 of 4 predictions correct"),
        ("own", {"states": {}}, "with states of [], not of ['f1']"),
        ("own", {"states": {"f1": (0,) * 9, "auc": (1,)}}, "with states of ['auc', 'f1'], not of ['f1']"),
        ("own", {"states": {"f1": (0,) * 8}}, "a state of f1 of 8 numbers, not 9"),
        ("own", {"states": {"f1": (0,) * 9}}, "cannot be that of 4 predictions"),
        ("own", {"n": 0, "n_correct": 0, "states": {}}, None),  # no sample was tested
        ("train", {}, "with states of ['f1'], not of []"),
        ("train", {"states": {}}, None),
    ],
)
def test_a_score_from_another_process_is_checked(name: str, changes: dict[str, Any], message: str | None) -> None:
    fault = scoring(metrics=["accuracy", "f1"]).fault(name, score(**changes), 8)
    assert (fault is None) if message is None else message in (fault or "")


def test_scores_add_up_with_their_states() -> None:
    total = sum([score(), score(), Score.nothing()], Score.nothing())
    assert (total.n, total.states) == (8, {"f1": (2, 2, 0, 4, 2, 2, 4, 2, 2)})
    assert Score.nothing().model_dump() == {"n": 0, "n_correct": 0, "loss_sum": 0.0}


def test_numbers_have_no_accuracy() -> None:
    of_numbers = scoring("numbers", 0)
    outputs, targets = torch.tensor([1.0, 3.0]), torch.tensor([[2.0], [1.0]])
    found = Score(n=2, n_correct=0, loss_sum=5.0, states=of_numbers.states(outputs, targets))
    shown = of_numbers.evaluation(found)
    assert (shown.accuracy, shown.loss, shown.metrics) == (None, 2.5, {"mae": 1.5})


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_is_a_mean_and_a_sum_over_predictions_and_has_gradients(name: str) -> None:
    loss = LOSSES[name]
    outputs = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.3, 0.1]], requires_grad=True)
    known: dict[str, tuple[Target, Tensor]] = {
        "classes": (Classes(3), torch.tensor([2, 0])),
        "labels": (Labels(3), torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])),
        "numbers": (Numbers((3,)), torch.tensor([[0.0, 3.0, 2.0], [1.0, 0.0, 0.0]])),
    }
    target, targets = known[min(loss.kinds)]
    of_run = loss_of_run(loss, {}, target)
    mean = of_run.mean(outputs, targets)
    assert of_run.sum(outputs, targets).item() == pytest.approx(2 * mean.item())
    mean.backward()
    assert outputs.grad is not None
    assert outputs.grad.abs().sum() > 0


@pytest.mark.parametrize("params", [{"weight": [1, 9]}, {"weight": [1, 9], "smoothing": 0.2}])
def test_class_weights_are_torchs(params: dict[str, Any]) -> None:
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(7, 2, generator=g, requires_grad=True), torch.tensor([0, 0, 1, 0, 1, 0, 0])
    made = loss_of_run(LOSSES["cross_entropy"], params, Classes(2))
    smoothing = params.get("smoothing", 0.0)
    torchs = functional.cross_entropy(outputs, targets, torch.tensor([1.0, 9.0]), label_smoothing=smoothing)
    assert made.mean(outputs, targets).item() == pytest.approx(torchs.item(), rel=1e-6)
    (own,), (theirs,) = (torch.autograd.grad(mean, outputs) for mean in (made.mean(outputs, targets), torchs))
    assert torch.allclose(own, theirs, atol=1e-7)
    parts = [slice(0, 2), slice(2, 7)]  # sums and weights add up to the mean of the whole
    loss_sum = sum(made.sum(outputs[part], targets[part]).item() for part in parts)
    assert sum(made.weight(targets[part]) for part in parts) == 5 + 2 * 9
    assert loss_sum / 23 == pytest.approx(torchs.item(), rel=1e-6)


@pytest.mark.parametrize("weight", [None, 3.0, [1.0, 4.0]])
def test_the_binary_cross_entropy_is_torchs(weight: Any) -> None:
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(6, 2, generator=g), (torch.rand(6, 2, generator=g) > 0.5).float()
    made = loss_of_run(LOSSES["bce"], {} if weight is None else {"pos_weight": weight}, Labels(2))
    torchs = torch.nn.BCEWithLogitsLoss(pos_weight=None if weight is None else torch.tensor(weight))(outputs, targets)
    assert made.mean(outputs, targets).item() == pytest.approx(torchs.item(), rel=1e-6)
    if weight is None:
        assert Labels(2).loss(outputs, targets).item() == pytest.approx(torchs.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "params", "target", "message"),
    [
        ("cross_entropy", {"weight": [1, 2, 3]}, Classes(2), "weight has 3 numbers, the data have 2 classes"),
        ("cross_entropy", {"weight": [1, 0]}, Classes(2), "loss.params.weight.1"),
        ("bce", {"pos_weight": [1, 2]}, Labels(3), "pos_weight has 2 numbers, the data have 3 labels"),
        ("bce", {}, Numbers((3,)), "targets of 0 and 1 are labels with `data.kind: labels`"),
    ],
)
def test_weights_that_do_not_fit_the_data_are_refused(
    name: str, params: dict[str, Any], target: Target, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        loss_of_run(LOSSES[name], params, target)


SCALAR = Loss(name="scalar", kinds=frozenset({"classes"}), each=lambda params, z, y: functional.cross_entropy(z, y))


@pytest.mark.parametrize(
    ("each", "message"),
    [
        (SCALAR.each, r"returns torch.float32 of shape \(\) for 5 predictions, .* shape \(5,\); .*reduction='none'"),
        (lambda params, z, y: z.square(), r"shape \(5, 2\) for 5 predictions"),
        (lambda params, z, y: y, "torch.int64"),
        (lambda params, z, y: 0.5, "returns a float"),
    ],
)
def test_a_loss_that_is_not_one_number_for_each_prediction_is_refused_by_name(each: Any, message: str) -> None:
    made = LossOfRun(replace(SCALAR, each=each), None, Classes(2))
    outputs, targets = torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)
    for of_batch in (made.mean, made.sum):
        with pytest.raises(BadInput, match=f"loss: scalar .*{message}"):
            of_batch(outputs, targets)
    with pytest.raises(BadInput, match="one loss for each"):
        try_scoring(Scoring(target=Classes(2), loss=made), targets.numpy())


def test_losses_equal_torchs_where_it_has_them() -> None:
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(6, 2, generator=g), 3 * torch.randn(6, 2, generator=g)
    known = {"mse": torch.nn.MSELoss(), "mae": torch.nn.L1Loss(), "huber": torch.nn.HuberLoss(delta=1.0)}
    for name, torchs in known.items():
        loss = LossOfRun(LOSSES[name], LOSSES[name].parse({}, "loss"), Numbers((2,)))
        assert loss.mean(outputs, targets).item() == pytest.approx(torchs(outputs, targets).item(), rel=1e-6)
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    entropy = torch.nn.functional.cross_entropy(outputs, labels).item()
    flat = LossOfRun(LOSSES["focal"], LOSSES["focal"].parse({"gamma": 0.0}, "loss"), Classes(2))
    assert flat.mean(outputs, labels).item() == pytest.approx(entropy, rel=1e-6)  # gamma 0 is the cross-entropy
    assert set(DEFAULT_LOSS.values()) <= set(LOSSES)


PLUGIN = """
import math
import torch
from torch import Tensor
from torch.nn import functional
from shared.training.losses import Loss
from shared.training.metrics.metric import Metric

def counts(params, outputs, targets):
    return torch.tensor([len(targets), int((outputs.argmax(1) < targets).sum())])

UNDERSHOT = Metric(
    name="undershot",
    description="share of predictions that are too low",
    kinds=frozenset({"classes"}),
    state=counts,
    value=lambda params, state: state[1] / state[0] if state[0] else math.nan,
    largest=lambda params, n_classes: (1, 1),
    higher_is_better=False,
    unit="share",
)
CUBED = Loss(
    name="cubed",
    description="cubed absolute error",
    kinds=frozenset({"numbers"}),
    each=lambda params, outputs, targets: (outputs - targets).abs().pow(3).mean(1),
)
"""


def test_a_package_brings_metrics_and_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scoring_plugin").mkdir()
    (tmp_path / "scoring_plugin" / "__init__.py").write_text("")
    (tmp_path / "scoring_plugin" / "mine.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STRATA_PLUGINS", "scoring_plugin")
    found = scoring(metrics=["undershot"])
    assert found.infos[0].model_dump() == {"label": "undershot", "higher_is_better": False, "unit": "share"}
    states = found.states(torch.eye(3), torch.tensor([0, 2, 2]))
    assert states == {"undershot": (3, 1)}
    assert found.value(Score(n=3, n_correct=2, loss_sum=1.0, states=states)) == pytest.approx(1 / 3)
    assert found.value(Score(n=0, n_correct=0, loss_sum=0.0, states={"undershot": (0, 0)})) is None  # not NaN
    of_batch = scoring("numbers", 0, loss="cubed").batch_loss
    assert of_batch is not None
    loss = of_batch(torch.tensor([1.0, 4.0]), torch.tensor([[3.0], [1.0]]))
    assert loss.item() == (8 + 27) / 2
    monkeypatch.delenv("STRATA_PLUGINS")
    with pytest.raises(BadInput, match="unknown metric 'undershot'"):
        parse_spec({"metrics": ["undershot"]})
