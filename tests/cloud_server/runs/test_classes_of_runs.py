"""What a run's last evaluations count by class: in the record, in the results folder, in the report."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load
from sklearn import metrics as sklearn_metrics

from shared.federation.experiment import Experiment
from shared.results.reader import pictures_of, read_history
from shared.results.report.page import report
from shared.training import models
from shared.training.data.dataset import as_batch
from shared.training.data.open_data import open_data
from strata.objects.frames import class_table, frame
from tests.data_cache import data_cache
from tests.federation import Federation, small_spec

pytestmark = pytest.mark.layout(agent_devices=(3, 3))

METRICS = ["accuracy", "recall", "precision", {"name": "recall", "params": {"label": 8}}, "confusion"]


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def matrix(rows: list[dict[str, str]], client: str, evaluation: str) -> np.ndarray[Any, Any]:
    """The matrix of one evaluation, (10, 10); classes without samples have no row in the table."""
    found = np.zeros((10, 10), np.int64)
    for row in rows:
        if (row["client"], row["evaluation"]) == (client, evaluation):
            found[int(row["target"])] = [int(row[str(label)]) for label in range(10)]
    return found


@pytest.mark.whole
async def test_the_last_round_has_recall_precision_and_confusion_globally_and_by_client(fed: Federation) -> None:
    spec = small_spec(
        lr=0.2, metrics=METRICS, test_on=["union"], partition={"name": "shards", "classes_per_device": 2}, seed=4
    )
    info = await fed.run(spec)
    body = (await fed.client.get(f"/runs/{info.run}/models/global")).content
    last, first = await fed.round(info.run, 2), await fed.round(info.run, 1)
    experiment = Experiment(info.spec, open_data(info.spec.data, data_dir=None, cache_dir=data_cache()))
    model = experiment.model.eval()
    models.write_state(model, load(body))
    data, tests = experiment.data, experiment.population.test.indices
    predicted = model(as_batch(np.asarray(data.test_x)[tests])).detach().argmax(1)
    labels, every = np.asarray(data.test_y)[tests], np.arange(10)

    # The record: states of whole numbers, of the last round alone, and not in the document of the run.
    scores = (last.evaluation or {})["global"]
    assert scores.by_class is not None
    exact = sklearn_metrics.confusion_matrix(labels, predicted, labels=every)
    assert np.array_equal(scores.by_class.confusion, exact)
    known: Any = {"average": None, "zero_division": np.nan, "labels": every}
    recall = sklearn_metrics.recall_score(labels, predicted, **known)
    precision = sklearn_metrics.precision_score(labels, predicted, **known)
    assert scores.metrics == pytest.approx(
        {"recall": np.nanmean(recall), "precision": np.nanmean(precision), "recall(label=8)": recall[8]}
    )
    assert [metric.label for metric in info.metrics] == ["accuracy", "recall", "precision", "recall(label=8)"]
    assert all(score.by_class is None for score in info.final.values())
    assert all(score.by_class is None for score in (first.evaluation or {}).values())
    assert not any(seat.by_class for seat in (*first.seats, *last.seats))

    # The results folder: of the cloud's evaluations, of all clients together, and of each.
    folder = fed.folder / "runs" / info.run
    rows = lines(folder / "confusion.csv")
    assert np.array_equal(matrix(rows, "", "global"), exact)
    assert np.array_equal(matrix(rows, "", "global_on_union"), exact)
    names = {(row["client"], row["evaluation"]) for row in rows}
    clients = sorted(client for client, evaluation in names if evaluation == "received" and client)
    assert clients == [f"device-{number}" for number in range(6)]
    of_clients = [matrix(rows, client, "received") for client in clients]
    assert np.array_equal(sum(of_clients), matrix(rows, "", "clients_received"))
    for number, client in enumerate(clients):
        own = experiment.population.seat(number).test.indices
        assert matrix(rows, client, "received").sum(1).tolist() == np.bincount(data.test_y[own], minlength=10).tolist()
    by_class = [row for row in lines(folder / "classes.csv") if (row["client"], row["evaluation"]) == ("", "global")]
    for row in by_class:
        label = int(row["class"])
        assert row["name"] == str(label)
        assert float(row["recall"] or "nan") == pytest.approx(recall[label], nan_ok=True)
        assert float(row["precision"] or "nan") == pytest.approx(precision[label], nan_ok=True)
    assert len(by_class) == 10
    own_classes = Counter(row["client"] for row in lines(folder / "classes.csv") if row["evaluation"] == "received")
    assert own_classes["device-0"] < 10  # a class that is neither target nor prediction is left out

    # The same in Python; an undefined share is missing, not 0.
    table = frame(class_table(folder, "classes.csv"))
    assert table[(table.client == "") & (table.evaluation == "global")].recall.tolist() == pytest.approx(recall)
    assert frame(class_table(folder, "confusion.csv")).shape == (len(rows), 15)

    # The pictures and the report.
    found = {picture.name: picture for picture in pictures_of(read_history(folder))}["classes"]
    assert [panel.kind for panel in found.panels] == ["bars", "cells"]
    assert "Classes" in report([folder])


@pytest.mark.whole
async def test_f1_alone_has_a_table_by_class_and_other_metrics_have_none(fed: Federation) -> None:
    plain = await fed.run(small_spec())
    personal = await fed.run(small_spec(metrics=["accuracy", "f1"], algorithm="local_sgd", test_on=["union"]))
    folders = {name: fed.folder / "runs" / info.run for name, info in (("plain", plain), ("f1", personal))}
    assert [(folders["plain"] / name).exists() for name in ("classes.csv", "confusion.csv")] == [False, False]
    assert [(folders["f1"] / name).exists() for name in ("classes.csv", "confusion.csv")] == [True, False]
    for evaluation, n_tests in (("own", 100), ("own_on_union", 600)):
        sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in lines(folders["f1"] / "classes.csv"):
            if row["evaluation"] in (evaluation, f"clients_{evaluation}"):
                sums[row["client"]].update({name: int(row[name]) for name in ("hits", "predictions", "targets")})
        together = sums.pop("")
        assert together == sum(sums.values(), Counter())
        assert together["targets"] == together["predictions"] == n_tests > together["hits"]
        assert sorted(sums) == [f"device-{number}" for number in range(6)]
    found = next(each for each in pictures_of(read_history(folders["f1"])) if each.name == "classes")
    assert found.title.endswith("all clients together")


async def test_edges_that_are_the_clients_have_tables_of_their_own(fed: Federation) -> None:
    info = await fed.run(small_spec(metrics=["accuracy", "recall"], client="edge"))
    rows = lines(fed.folder / "runs" / info.run / "classes.csv")
    assert {row["client"] for row in rows if row["evaluation"] == "own"} == {"edge-0", "edge-1"}
