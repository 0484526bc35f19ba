"""Runs through three tiers whose losses and figures are known from torch and scikit-learn: labels, class weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch import Tensor
from torch.nn import functional

from shared.core import plugins
from shared.core.errors import BadInput
from shared.federation.experiment import Experiment
from shared.federation.spec_parser import parse_spec
from shared.run_records.rounds import Evaluation
from shared.training import models
from shared.training.data.open_data import open_data
from tests.shared.algorithms.layouts import Ended, ended, federation

SIZES: dict[str, Any] = {"num_devices": 3, "num_edges": 2, "num_rounds": 2, "batch_size": 16, "lr": 0.2, "model": "mlp"}


WEIGHT = torch.tensor([1.0, 9.0])
WEIGHTED = {"name": "cross_entropy", "params": {"weight": [1, 9]}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Returns a folder with samples of several labels, and of two classes of which one is rare."""
    rng, folder = np.random.default_rng(0), tmp_path / "data"
    folder.mkdir()
    x = rng.normal(size=(150, 5)).astype(np.float32)
    labels = (x @ rng.normal(size=(5, 3)) > 0.5).astype(np.int64)
    rare = (x[:, 0] > 1.2).astype(np.int64)
    for name, y in (("labels", labels), ("rare", rare)):
        np.savez(folder / f"{name}.npz", train_x=x[:90], train_y=y[:90], test_x=x[90:], test_y=y[90:])
    return folder


async def done(folder: Path, data_dir: Path, **spec: Any) -> Ended:
    async with federation(folder, agent_devices=(2, 1), n_edges=2, common={"data_dir": data_dir}) as fed:
        return await ended(fed, await fed.submit({**SIZES, **spec}))


def scored(run: Ended) -> tuple[Evaluation, Tensor, Tensor]:
    """Returns the last score of a run's global model, and its outputs and targets on the test set."""
    evaluation, data = run.rounds[-1].evaluation, run.experiment.data
    assert evaluation is not None
    return evaluation["global"], outputs_of(run, data.test_x), torch.from_numpy(np.array(data.test_y))


def outputs_of(run: Ended, x: npt.NDArray[Any]) -> Tensor:
    """Returns the outputs of a run's global model."""
    model = run.experiment.model
    models.write_state(model, run.model)
    with torch.no_grad():
        found: Tensor = model.eval()(run.experiment.data.encode(x))
    return found


@pytest.mark.whole
async def test_several_labels_are_learnt_and_their_figures_are_sklearns(tmp_path: Path, data: Path) -> None:
    spec: dict[str, Any] = {"data": {"file": "labels.npz", "kind": "labels"}, "num_rounds": 6}
    micro = {"name": "f1", "params": {"average": "micro"}}
    run = await done(tmp_path / "run", data, **spec, metrics=["f1", micro, "auc", "accuracy"])
    score, outputs, y = scored(run)
    says = outputs > 0
    assert score.loss == pytest.approx(functional.binary_cross_entropy_with_logits(outputs, y).item(), rel=1e-5)
    assert score.accuracy == sklearn_metrics.accuracy_score(y, says)
    recalls = sklearn_metrics.recall_score(y, says, average=None)
    known = {
        "f1": sklearn_metrics.f1_score(y, says, average="macro"),
        "f1(average=micro)": sklearn_metrics.f1_score(y, says, average="micro"),
        "auc": sklearn_metrics.roc_auc_score(y, outputs),
    }
    assert score.metrics == pytest.approx(known, rel=1e-9)
    assert score.metrics["f1"] > 0.6
    assert score.by_class is not None
    assert [score.by_class.recall(label) for label in range(3)] == list(recalls)
    stacked = await done(tmp_path / "stacked", data, **spec, vectorised={"width": 3})
    for name, tensor in run.model.items():
        torch.testing.assert_close(stacked.model[name], tensor, atol=1e-5, rtol=0)
    for row, other in zip(run.rounds[0].seats, stacked.rounds[0].seats, strict=True):
        assert other.train_loss == pytest.approx(row.train_loss, rel=1e-4)


async def test_the_loss_with_class_weights_is_torchs_over_all_tiers(tmp_path: Path, data: Path) -> None:
    run = await done(tmp_path / "run", data, data="rare.npz", loss=WEIGHTED, metrics=["accuracy", "f1"])
    score, outputs, y = scored(run)
    assert score.loss == pytest.approx(functional.cross_entropy(outputs, y, WEIGHT).item(), rel=1e-5)
    assert score.loss != pytest.approx(functional.cross_entropy(outputs, y, WEIGHT, reduction="none").mean().item())


async def test_one_step_with_class_weights_is_torchs(tmp_path: Path, data: Path) -> None:
    spec: dict[str, Any] = {"data": "rare.npz", "num_devices": 1, "num_edges": 1, "num_rounds": 1, "batch_size": 1000}
    run = await done(tmp_path / "run", data, **spec, loss=WEIGHTED)
    model, held = run.experiment._first_model(), run.experiment.data
    mean = functional.cross_entropy(model(held.encode(held.train_x)), torch.from_numpy(np.array(held.train_y)), WEIGHT)
    mean.backward()
    assert run.rounds[0].seats[0].train_loss == pytest.approx(mean.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(run.model[name], parameter.detach() - 0.2 * parameter.grad, atol=1e-6, rtol=0)


PLUGIN = """
import torch
from torch.nn import functional
from strata.plugins import Loss, Metric

CLASSES = frozenset({"classes"})


def hits(params, outputs, targets):
    return torch.stack([torch.tensor(len(targets)), (outputs.argmax(1) == targets).sum()])


def metric(name, state=hits, value=lambda params, state: 0.5, largest=lambda params, n_classes: (1, 1)):
    return Metric(name=name, kinds=CLASSES, state=state, value=value, largest=largest)


SCALAR = Loss(name="scalar", kinds=CLASSES, each=lambda params, z, y: functional.cross_entropy(z, y))
FLAT = Loss(name="flat", kinds=CLASSES, each=lambda params, z, y: (z.argmax(1) != y).float())
BEYOND = metric("beyond", largest=lambda params, n_classes: (1, 0))
MEAN = metric("mean_of", state=lambda params, z, y: (z.argmax(1) == y).float().mean())
TENSOR = metric("tensor", value=lambda params, state: torch.tensor(0.5))
"""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"loss": "scalar"}, r"loss: scalar returns torch.float32 of shape \(\) for 8 predictions, .* shape \(8,\)"),
        ({"loss": "flat"}, "loss: flat has no gradient"),
        ({"metrics": ["beyond"]}, "metrics.0: beyond has a state of beyond whose number 1"),
        ({"metrics": ["accuracy", "mean_of"]}, r"mean_of is torch.float32 \(\), not a tensor torch.int64 \(2,\)"),
        ({"metrics": ["tensor"]}, "the value of tensor is a Tensor, not a number"),
    ],
)
def test_what_a_plug_in_returns_is_checked_before_anything_starts(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], message: str
) -> None:
    (tmp_path / "odd_scores").mkdir()
    (tmp_path / "odd_scores" / "__init__.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STRATA_PLUGINS", "odd_scores")
    for cached in (plugins._values_of, plugins.modules_of, plugins.digest_of):
        cached.cache_clear()
    monkeypatch.delitem(sys.modules, "odd_scores", raising=False)
    parsed = parse_spec({**SIZES, "max_devices": 3, "data": "rare.npz", **spec})
    held = open_data(parsed.data, data_dir=data, cache_dir=data / "cache")
    with pytest.raises(BadInput, match=message):
        Experiment(parsed, held)
