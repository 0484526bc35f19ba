"""The use of trained models: runs through the three tiers, then predictions from their results folders alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from shared.core.errors import StrataError
from shared.results.onnx_export import input_names, to_onnx
from shared.results.saved_model import read_preprocessing, saved_model
from strata.main import app_entry
from strata.objects.run import load_run
from tests.shared.algorithms.layouts import Ended, ended, federation, new_folder

SIZES: dict[str, Any] = {"num_devices": 2, "num_edges": 1, "num_rounds": 3, "lr": 0.1, "model": "mlp"}
HEADER = ["age", "sex", "bmi", "seen", "state", "split"]


def patients(n: int = 300) -> list[list[str]]:
    """Returns rows of a table: numbers, categories, and Unix times, which float32 cannot hold."""
    rng = np.random.default_rng(0)
    age, bmi, sex = rng.integers(20, 90, n), rng.normal(26, 4, n), rng.choice(["f", "m", "x"], n)
    seen = 1_700_000_000 + rng.integers(0, 3000, n)
    ill = (age - 55) / 20 + (bmi - 26) / 4 + (sex == "m") + (seen - 1_700_001_500) / 1000 > 0.3
    part = np.where(np.arange(n) % 4 == 0, "test", "train")
    return [
        [f"{age[i]}", sex[i], f"{bmi[i]:.1f}", f"{seen[i]}", "ill" if ill[i] else "well", part[i]] for i in range(n)
    ]


def write(path: Path, rows: list[list[str]], header: list[str]) -> Path:
    path.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n", encoding="utf-8")
    return path


async def trained(folder: Path, data: Path, spec: dict[str, Any]) -> tuple[Ended, Path]:
    """Runs a spec to its end; returns it with its results folder."""
    async with federation(
        folder, agent_devices=(2,), n_edges=spec.get("num_edges", 1), common={"data_dir": data}
    ) as fed:
        run = await ended(fed, await fed.submit({**SIZES, **spec}))
    return run, fed.folder / "runs" / run.info.run


_TABLES: list[tuple[Ended, Path]] = []


@pytest.fixture
async def table() -> tuple[Ended, Path]:
    """Returns a run on a table of patients, and its results folder, which tests only read."""
    if not _TABLES:
        rows, folder = patients(), new_folder()
        rows[1][2] = rows[9][1] = "?"  # a number and a category are missing
        write(folder / "p.csv", rows, HEADER)
        spec = {"data": {"file": "p.csv", "target": "state", "missing": "indicator"}}
        _TABLES.append(await trained(folder / "fed", folder, spec))
    return _TABLES[0]


def rows_of_test(rows: list[list[str]]) -> list[list[str]]:
    return [row for row in rows if row[-1] == "test"]


def predicted(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended_with:
        app_entry(["predict", *map(str, arguments)])
    return int(ended_with.value.code or 0)


async def test_a_table_is_predicted_as_the_run_tested_it(table: tuple[Ended, Path], tmp_path: Path) -> None:
    run, folder = table
    told = rows_of_test(patients())
    order = ["split", "bmi", "seen", "age", "sex"]  # another order, and no target
    new = write(tmp_path / "new.csv", [[row[HEADER.index(name)] for name in order] for row in told], order)
    assert predicted(folder, new, "--out", tmp_path / "out.csv") == 0
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["state", "p_ill", "p_well"]
    right = [row["state"] == truth[4] for row, truth in zip(rows, told, strict=True)]
    assert np.mean(right) == run.info.accuracy  # exactly: the same samples give the same outputs
    assert all(float(row["p_ill"]) + float(row["p_well"]) == pytest.approx(1, abs=1e-6) for row in rows)

    frame = pd.DataFrame(told, columns=HEADER).astype({"age": int, "bmi": float, "seen": int})
    found = load_run(folder).predict(frame)
    assert list(found) == [row["state"] for row in rows]
    assert (np.asarray(found) == frame["state"]).mean() == run.info.accuracy
    one = load_run(folder).predict({"age": [80], "sex": ["m"], "bmi": [None], "seen": [1_700_002_000]})
    assert list(one) == ["ill"]


async def test_the_folder_says_what_inputs_and_outputs_mean_and_plain_torch_repeats_it(
    table: tuple[Ended, Path],
) -> None:
    run, folder = table
    about = json.loads((folder / "preprocessing.json").read_text(encoding="utf-8"))
    assert [(column["name"], column["kind"]) for column in about["reading"]["columns"]] == [
        ("age", "number"),
        ("sex", "categories"),
        ("sex", "indicator"),
        ("bmi", "number"),
        ("bmi", "indicator"),
        ("seen", "number"),
    ]
    assert about["reading"]["classes"] == ["ill", "well"]
    assert (about["module"]["name"], about["sample"]["shape"], about["target"]["n"]) == ("mlp", [8], 2)
    age, seen = about["reading"]["columns"][0], about["reading"]["columns"][-1]
    train = [row for row in patients() if row[-1] == "train"]
    assert age["mean"] == pytest.approx(np.mean([float(row[0]) for row in train]))
    assert seen["std"] == pytest.approx(np.std([float(row[3]) for row in train]))

    first, last = torch.nn.Linear(8, 64), torch.nn.Linear(64, 2)
    weights = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for own, name in ((first, "features.1"), (last, "head")):
            own.weight.copy_(weights[f"{name}.weight"])
            own.bias.copy_(weights[f"{name}.bias"])
    x = run.experiment.data.encode(run.experiment.data.test_x)
    outputs = saved_model(folder).outputs(np.asarray(run.experiment.data.test_x))
    torch.testing.assert_close(last(torch.relu(first(x))), outputs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sex": "q"}, r"line 2: the cell of column sex is 'q'; the categories of the training table are f, m, x"),
        ({"age": "old"}, r"line 2: the cell of column age is 'old'; it is a column of numbers"),
        ({"age": ""}, r"line 2: the cell of column age is empty, and the training table had no missing cell"),
        ({"bmi": None}, r"lacks the columns bmi"),
    ],
)
async def test_a_cell_that_is_unlike_the_training_table_is_refused_by_line_and_column(
    change: dict[str, Any], message: str, table: tuple[Ended, Path], tmp_path: Path
) -> None:
    _, folder = table
    row = {"age": "50", "sex": "f", "bmi": "25.5", "seen": "1700000000"} | change
    row = {name: cell for name, cell in row.items() if cell is not None}
    new = write(tmp_path / "new.csv", [list(row.values())], list(row))
    with pytest.raises(StrataError, match=message):
        load_run(folder).predict(new)


async def test_numbers_are_predicted_in_the_unit_of_the_target(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rooms = rng.integers(1, 9, 200)
    price = rooms / 4 + 0.5 + rng.normal(0, 0.1, 200)
    rows = [
        [str(n), f"{p:.3f}", "test" if i % 4 == 0 else "train"]
        for i, (n, p) in enumerate(zip(rooms, price, strict=True))
    ]
    write(tmp_path / "h.csv", rows, ["rooms", "price", "split"])
    spec = {"data": {"file": "h.csv", "target": "price", "kind": "numbers"}, "metrics": ["rmse"], "lr": 0.01}
    run, folder = await trained(tmp_path / "fed", tmp_path, spec)
    told = rows_of_test(rows)
    found = load_run(folder).predict(write(tmp_path / "new.csv", told, ["rooms", "price", "split"]))
    errors = np.asarray(found, np.float64) - [float(row[1]) for row in told]
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(run.info.value(run.info.headline), rel=1e-5)
    assert next(found.rows()).keys() == {"price"}


async def test_images_of_a_folder_are_named_by_their_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for part, n in (("train", 30), ("test", 10)):
        for label, shade in (("cat", 60), ("dog", 190)):
            (tmp_path / "pets" / part / label).mkdir(parents=True)
            for i in range(n):
                pixels = np.clip(rng.normal(shade, 20, (10, 12)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "pets" / part / label / f"{i}.png")
    run, folder = await trained(tmp_path / "fed", tmp_path, {"data": {"file": "pets", "size": 8}})
    out = tmp_path / "out.csv"
    assert predicted(folder, tmp_path / "pets" / "test", "-o", out) == 0
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert np.mean([row["prediction"] == row["file"].split("/")[0] for row in rows]) == run.info.accuracy == 1
    colour = tmp_path / "colour.png"
    Image.new("RGB", (10, 12)).save(colour)
    with pytest.raises(StrataError, match=r"colour.png has colours \(RGB\), the model takes grey images"):
        load_run(folder).predict(colour)


async def test_arrays_are_predicted_and_others_refused(tmp_path: Path) -> None:
    run, folder = await trained(tmp_path / "fed", tmp_path, {"data": {"name": "digits", "n_train": 300}})
    data = run.experiment.data
    np.savez(tmp_path / "x.npz", x=data.test_x)
    found = load_run(folder).predict(tmp_path / "x.npz")
    assert (np.asarray(found) == data.test_y).mean() == run.info.accuracy
    with pytest.raises(StrataError, match=r"the array is float32 \(3, 8, 8\); the model takes uint8 \(n, 8, 8\)"):
        load_run(folder).predict(np.zeros((3, 8, 8), np.float32))
    (folder / "preprocessing.json").write_text((folder / "preprocessing.json").read_text().replace("digits", "other"))
    with pytest.raises(StrataError, match="its sha256 is that of another content"):
        load_run(folder).predict(data.test_x)


async def test_the_statistics_by_which_an_algorithm_normalises_images_are_saved(tmp_path: Path) -> None:
    spec = {"data": {"name": "digits", "n_train": 200, "n_test": 100}, "model": "cnn_6_12", "num_rounds": 2}
    spec |= {"algorithm": {"name": "lafl_cpn", "params": {"test_stats": "own"}}}
    run, folder = await trained(tmp_path / "fed", tmp_path, spec)
    data, test = run.experiment.data, run.experiment.population.test.indices
    found = load_run(folder).predict(np.asarray(data.test_x)[test])
    assert (np.asarray(found) == data.test_y[test]).mean() == run.info.final["global"].accuracy
    assert read_preprocessing(folder).channels is not None


async def test_models_of_clients_are_saved_by_their_names(tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "data": {"name": "digits", "n_train": 200, "n_test": 100},
        "algorithm": "dtpfl",
        "client": "edge",
    }
    spec |= {"num_edges": 2, "num_rounds": 4, "partition": {"name": "dirichlet", "alpha": 0.3}}
    run, folder = await trained(tmp_path / "fed", tmp_path, spec)
    own = [name for name in run.info.models if name != "global"]
    x = np.asarray(run.experiment.data.test_x)
    outputs = {name: saved_model(folder, name).outputs(x) for name in ["global", *own]}
    for name in own:
        assert not torch.equal(outputs[name], outputs["global"])
    with pytest.raises(StrataError, match="holds no model 'edge-9'"):
        load_run(folder).predict(x, model="edge-9")
    assert own


async def test_a_table_s_model_as_onnx_takes_the_numbers_as_they_are(table: tuple[Ended, Path]) -> None:
    pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    _, folder = table
    model = saved_model(folder)
    session = runtime.InferenceSession(to_onnx(model))
    told = rows_of_test(patients())
    names = input_names(model.preprocessing)
    assert names == ["age", "sex=f", "sex=m", "sex=x", "sex is missing", "bmi", "bmi is missing", "seen"]
    columns = {"age": 0, "bmi": 2, "seen": 3}
    rows = [
        [float(row[columns[name]]) if name in columns else float(name == f"sex={row[1]}") for name in names]
        for row in told
    ]
    (found,) = session.run(None, {"x": np.array(rows)})
    frame = pd.DataFrame(told, columns=HEADER)
    probabilities = load_run(folder).predict(frame).probabilities
    assert probabilities is not None
    np.testing.assert_allclose(found, probabilities, atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["ill", "well"]


async def test_labels_are_predicted_by_name_and_arrays_in_the_layout_of_the_training_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 6, 2)).astype(np.float32)  # (n, length, channels)
    y = np.stack([x[:, :, 0].mean(1) > 0, x[:, :, 1].mean(1) > 0], 1)
    np.savez(tmp_path / "l.npz", train_x=x[:60], train_y=y[:60], test_x=x[60:], test_y=y[60:])
    spec = {"data": {"file": "l.npz", "layout": "channels_last"}, "num_rounds": 10, "lr": 0.5}
    run, folder = await trained(tmp_path / "fed", tmp_path, spec)
    found = load_run(folder).predict(x[60:])
    right = [set(each) == {str(i) for i in range(2) if truth[i]} for each, truth in zip(found, y[60:], strict=True)]
    assert np.mean(right) == run.info.final["global"].value(run.info.metrics[0])
    assert found.probabilities is not None
    assert (found.probabilities > 0.5).sum() == sum(map(len, found))
