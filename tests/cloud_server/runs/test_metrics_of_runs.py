"""Metrics and losses of a spec, through the three tiers: in records, files, ends; and what is refused."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from safetensors.torch import load
from sklearn.metrics import f1_score, roc_auc_score, top_k_accuracy_score

from shared.core.scores import Spread
from shared.federation.experiment import Experiment
from shared.results.comparison import compare
from shared.results.folder import read_rounds
from shared.run_records.runs import RunInfo
from shared.training import models
from shared.training.data.dataset import as_batch
from shared.training.data.open_data import open_data
from tests.data_cache import data_cache
from tests.federation import EDGE_PORT, Federation, PassOn, small_spec
from tests.shared.algorithms.layouts import ran

pytestmark = pytest.mark.layout(agent_devices=(3, 3))

METRICS: list[Any] = ["f1", "accuracy", {"name": "top_k", "params": {"k": 3}}, "auc", "perplexity"]


async def experiment_of(info: RunInfo) -> Experiment:
    return Experiment(info.spec, open_data(info.spec.data, data_dir=None, cache_dir=data_cache()))


async def test_metrics_of_a_run_are_recorded_and_equal_those_of_its_model(fed: Federation) -> None:
    plain = await fed.run(small_spec(lr=0.1))
    info = await fed.run(small_spec(lr=0.1, metrics=METRICS, stop={"target": 2.0}))
    assert [metric.label for metric in info.metrics] == ["f1", "accuracy", "top_k(k=3)", "auc", "perplexity"]
    assert (info.model_sha256, info.accuracy, info.loss) == (plain.model_sha256, plain.accuracy, plain.loss)
    experiment = await experiment_of(info)
    last = await fed.round(info.run, 2)
    scores = (last.evaluation or {})["global"]
    body = (await fed.client.get(f"/runs/{info.run}/models/global")).content
    model = experiment.model.eval()
    models.write_state(model, load(body))
    data, tests = experiment.data, experiment.population.test.indices
    logits = model(as_batch(np.asarray(data.test_x)[tests])).detach()
    labels = np.asarray(data.test_y)[tests]
    expected = {
        "f1": f1_score(labels, logits.argmax(1), average="macro"),
        "top_k(k=3)": top_k_accuracy_score(labels, logits.numpy(), k=3, labels=np.arange(10)),
        "perplexity": math.exp(scores.loss or 0),
        "auc": roc_auc_score(labels, torch.softmax(logits.double(), 1).numpy(), multi_class="ovr"),
    }
    assert {name: scores.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert info.score == info.scores["f1"] == scores.metrics["f1"]
    # Over clients: each metric, from each seat's own states.
    rows = [row for row in last.seats if row.own_metrics]
    values = [row.own_metrics["f1"] for row in rows]
    assert len(values) == 6
    assert last.clients["own"] == Spread.of(values)
    assert last.clients["own"].worst_decile == min(values)
    assert last.clients["own"].variance == pytest.approx(np.var(values))
    assert last.client_accuracy == pytest.approx(np.mean([row.own_accuracy for row in rows]))
    assert list(last.client_metrics) == ["accuracy", "top_k(k=3)", "auc", "perplexity"]
    assert last.client_metrics["accuracy"]["own"] == Spread.of([row.own_accuracy or 0 for row in rows])
    received = [row.received_metrics["perplexity"] for row in rows]
    spread = last.client_metrics["perplexity"]["received"]
    assert spread == Spread.of(received, higher_is_better=False)
    assert spread.worst_decile == max(received)
    assert info.client_metrics.keys() == last.client_metrics.keys()
    clients = info.final["clients_received"].metrics
    assert set(clients) == set(scores.metrics)
    with (fed.folder / "runs" / info.run / "rounds.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert float(lines[1]["f1"]) == scores.metrics["f1"]
    assert float(lines[1]["top_k(k=3)"]) == scores.metrics["top_k(k=3)"]
    kept = read_rounds(fed.folder / "runs" / info.run)[1].client_metrics
    assert kept["auc"]["own"].mean == pytest.approx(np.mean([row.own_metrics["auc"] for row in rows]))
    assert kept == last.client_metrics
    of_plain = fed.folder / "runs" / plain.run
    assert not any("client_metrics" in (of_plain / name).read_text() for name in ("rounds.csv", "run.json"))


def shapes(body: bytes) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((name, tuple(tensor.shape)) for name, tensor in load(body).items())


@pytest.mark.whole
async def test_a_spec_without_metrics_sends_no_states(fed: Federation) -> None:
    bodies: list[bytes] = []

    async def listen(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        response = await pass_on(request)
        if request.url.port in range(EDGE_PORT, EDGE_PORT + 2) and request.url.path == "/rounds":
            bodies.append(await response.aread())
            return httpx2.Response(200, content=bodies[-1], headers=response.headers)
        return response

    fed.router.tamper = listen
    await fed.run(small_spec())
    plain, bodies[:] = list(bodies), []
    await fed.run(small_spec(metrics=["accuracy"]))
    assert len(plain) == len(bodies) == 6  # two edges, two rounds, and the final evaluation
    # Tensors alone: the records beside them hold wall times, whose length varies.
    assert [shapes(body) for body in bodies] == [shapes(body) for body in plain]
    assert not any(b"states" in body for body in [*plain, *bodies])
    bodies.clear()
    await fed.run(small_spec(metrics=["f1"]))
    assert [b"states" in body for body in bodies] == [True] * 6


@pytest.mark.whole
async def test_a_run_ends_when_a_metric_falls_to_its_target(fed: Federation) -> None:
    spec = small_spec(num_rounds=6, lr=0.1, metrics=["perplexity"])
    whole = await fed.run(spec)
    rounds = [await fed.round(whole.run, number) for number in range(1, 7)]
    curve = [(row.evaluation or {})["global"].metrics["perplexity"] for row in rounds]
    target = sorted(curve)[2]
    first = next(n for n in range(2, 7) if max(curve[n - 2 : n]) <= target)
    assert 2 <= first < 6
    info = await fed.run({**spec, "stop": {"target": target, "times": 2}})
    assert (info.status, info.rounds) == ("completed", first)
    assert (info.reason or "").startswith(f"perplexity {curve[first - 1]:.4g} reached stop.target")
    more = {"num_rounds": 1, "stop": {"metric": "f1", "target": 0.5}}
    refused = await fed.client.post(f"/runs/{info.run}/rounds", json=more)
    assert (refused.status_code, refused.json()["field"]) == (422, "stop.metric")


@pytest.mark.whole
async def test_clients_models_end_a_run_by_the_mean_of_a_further_metric(fed: Federation) -> None:
    spec = small_spec(algorithm="local_sgd", num_rounds=4, lr=0.1, metrics=["accuracy", "perplexity"])
    whole = await fed.run(spec)
    rounds = [await fed.round(whole.run, number) for number in range(1, 5)]
    means = [row.client_metrics["perplexity"]["own"].mean for row in rounds]
    target = sorted(means)[1]
    info = await fed.run({**spec, "stop": {"metric": "perplexity", "target": target}})
    assert info.rounds == 1 + next(at for at, mean in enumerate(means) if mean <= target)
    assert info.rounds < 4
    folder = fed.folder / "runs" / whole.run
    curve = compare([folder], metric="perplexity").curves[0]
    assert [point.value for point in curve.points] == means
    assert curve.clients == whole.client_metrics["perplexity"]["own"]


@pytest.mark.whole
async def test_a_named_loss_is_what_devices_minimise(fed: Federation) -> None:
    plain = (await ran(small_spec())).info
    same = await fed.run(small_spec(loss="cross_entropy"))
    focal = await fed.run(small_spec(loss={"name": "focal", "params": {"gamma": 1.0}}))
    assert plain.model_sha256 == same.model_sha256 != focal.model_sha256
    assert (focal.loss or 9) < (plain.loss or 0)  # of equal predictions the focal loss is the smaller


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Returns a folder with numbers to predict, and with text whose rows differ in length."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5]) + 3
    np.savez(folder / "line.npz", train_x=x[:80], train_y=y[:80], test_x=x[80:], test_y=y[80:])
    text = (1 + np.arange(7 * 40) % 5).reshape(40, 7)
    mask = np.arange(6) < rng.integers(3, 7, 40)[:, None]
    lines: dict[str, Any] = {"padding": np.array(0)}
    for part, rows in (("train", slice(32)), ("test", slice(32, None))):
        lines |= {f"{part}_x": text[rows, :-1], f"{part}_y": text[rows, 1:], f"{part}_mask": mask[rows]}
    np.savez(folder / "lines.npz", **lines)
    return folder


@pytest.mark.whole
async def test_a_regression_is_judged_by_its_error(tmp_path: Path, data: Path) -> None:
    """The errors of a model with known bits, in the unit of the target; a named loss is that of training and test."""
    spec = small_spec(data="line.npz", lr=0.05, num_rounds=6, loss="huber", metrics=["mae", "rmse"])
    async with Federation(tmp_path / "f", common={"data_dir": data}) as fed:
        default = await fed.run({**spec, "metrics": [], "loss": None, "num_rounds": 1})
        assert [metric.label for metric in default.metrics] == ["mae"]
        info = await fed.run({**spec, "stop": {"metric": "rmse", "target": 1.0}})
        assert (info.accuracy, info.headline.higher_is_better) == (None, False)
        opened = open_data(info.spec.data, data_dir=data, cache_dir=tmp_path / "cache")
        experiment = Experiment(info.spec, opened)
        model = experiment.model.eval()
        models.write_state(model, load((await fed.client.get(f"/runs/{info.run}/models/global")).content))
        targets = np.asarray(opened.test_y)
        outputs = model(opened.encode(np.asarray(opened.test_x))).detach()
        gap = outputs.reshape(len(targets), -1).double().numpy() - targets.reshape(len(targets), -1)
        assert info.scores["mae"] == pytest.approx(np.abs(gap).mean(), rel=1e-6)
        assert info.scores["rmse"] == pytest.approx(math.sqrt((gap**2).mean()), rel=1e-6)
        huber = np.where(np.abs(gap) < 1, gap**2 / 2, np.abs(gap) - 0.5).mean()
        assert info.loss == pytest.approx(huber, rel=1e-5)
        last = await fed.round(info.run, info.rounds)
        values = [row.own_metrics["mae"] for row in last.seats]
        assert last.clients["own"].worst_decile == max(values)  # the largest error is the worst
        assert (last.client_accuracy, {row.own_accuracy for row in last.seats}) == (None, {None})


@pytest.mark.whole
async def test_text_is_scored_by_its_tokens_without_padding(tmp_path: Path, data: Path) -> None:
    model = {"data": "lines.npz", "model": "char_lstm", "lr": 1.0, "batch_size": 4}
    async with Federation(tmp_path / "f", common={"data_dir": data}) as fed:
        info = await fed.run(small_spec(**model, num_rounds=1, metrics=["perplexity", "accuracy", "f1"]))
        scores = (await fed.round(info.run, 1)).evaluation or {}
        opened = open_data(info.spec.data, data_dir=data, cache_dir=tmp_path / "cache")
        assert scores["global"].n == int((np.asarray(opened.test_y) != 0).sum()) < 8 * 6
        assert scores["global"].metrics["perplexity"] == pytest.approx(math.exp(scores["global"].loss or 0), rel=1e-6)
        assert info.accuracy is not None
        assert info.score == info.scores["perplexity"]
