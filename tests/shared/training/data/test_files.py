"""Data sets in files: arrays of any kind, tables, and folders of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from shared.core.errors import BadInput
from shared.core.os_errors import SystemRefused
from shared.training.data.dataset import Dataset
from shared.training.data.open_data import check_data, open_data
from shared.training.data.sources import DataMalformed, DataUnavailable
from shared.training.description import Classes, Numbers, Sample, Tokens
from shared.training.specs import DataSpec

Arrays = dict[str, Any]


def opened(folder: Path, **spec: Any) -> Dataset:
    """Opens the data set of a file in a folder."""
    checked = DataSpec.model_validate(spec)
    check_data(checked)
    return open_data(checked, data_dir=folder, cache_dir=folder / "cache")


def of_arrays(folder: Path, kind: str | None = None, **arrays: Any) -> Dataset:
    """Writes arrays as an `.npz` and opens it."""
    np.savez(folder / "mine.npz", **arrays)
    return opened(folder, file="mine.npz", kind=kind)


def table_of(folder: Path, text: str, **spec: Any) -> Dataset:
    """Writes a table and opens it."""
    (folder / "rows.csv").write_text(text, encoding="utf-8")
    return opened(folder, file="rows.csv", **spec)


NUMBERS: Arrays = {
    "train_x": np.arange(12.0).reshape(4, 3),
    "train_y": np.array([0.5, 1.5, 2.5, 3.5]),
    "test_x": np.ones((2, 3)),
    "test_y": np.array([1.0, 2.0]),
}
TOKENS: Arrays = {
    "train_x": np.array([[1, 2, 0], [3, 1, 2]]),
    "train_y": np.array([[2, 0, 0], [1, 2, 4]]),
    "test_x": np.array([[1, 1, 1]]),
    "test_y": np.array([[1, 1, 1]]),
}

# ---- arrays


def test_floats_become_float32_numbers_that_are_memory_mapped(tmp_path: Path) -> None:
    got = of_arrays(tmp_path, **NUMBERS)
    assert (got.name, got.sample, got.target) == ("mine", Sample((3,)), Numbers((1,)))
    assert isinstance(got.train_x, np.memmap)
    assert got.train_x.dtype == got.train_y.dtype == np.float32
    assert got.train_y.tolist() == [[0.5], [1.5], [2.5], [3.5]]
    batch = got.encode(got.train_x[1:2])
    assert batch.tolist() == [[3.0, 4.0, 5.0]]
    assert batch.dtype == torch.float32


def test_normalisation_is_the_data_sets_own_and_of_images_by_channel(tmp_path: Path) -> None:
    got = of_arrays(tmp_path, **NUMBERS, mean=np.array([3.0, 4.0, 5.0]), std=np.array([1.0, 2.0, 4.0]))
    assert got.encode(got.train_x[2:3]).tolist() == [[3.0, 1.5, 0.75]]
    again = of_arrays(tmp_path, **NUMBERS, mean=np.array(0.0), std=np.array(2.0))
    assert again.encode(again.train_x[1:2]).tolist() == [[1.5, 2.0, 2.5]]
    assert again.digest != got.digest
    x, y = np.full((2, 4, 4, 3), 255, np.uint8), np.array([0, 1])
    of_channels: Arrays = {"mean": np.array([0.0, 0.5, 1.0]), "std": np.array([1.0, 0.5, 0.25])}
    images = of_arrays(tmp_path, train_x=x, train_y=y, test_x=x, test_y=y, **of_channels)
    assert images.sample == Sample((3, 4, 4), images=True)
    assert images.encode(images.train_x)[0, :, 0, 0].tolist() == [1.0, 1.0, 0.0]


def test_sequences_of_integers_are_tokens_with_a_vocabulary_and_padding(tmp_path: Path) -> None:
    got = of_arrays(tmp_path, **TOKENS, padding=np.array(0))
    assert got.sample == Sample((3,), "int64", vocabulary=5, padding=0)
    assert got.target == Tokens(5, 3, padding=0)
    assert got.encode(got.train_x).dtype == torch.int64
    larger = of_arrays(tmp_path, **TOKENS, vocabulary=np.array(9))
    assert (larger.sample.vocabulary, larger.target) == (9, Tokens(9, 3))
    assert larger.digest != got.digest


def test_a_mask_is_padding_of_indices_and_the_last_channel_of_numbers(tmp_path: Path) -> None:
    of_indices: Arrays = {"train_mask": np.array([[1, 1, 0], [1, 1, 1]]), "test_mask": np.array([[1, 0, 0]])}
    got = of_arrays(tmp_path, **TOKENS, **of_indices, padding=np.array(5))
    assert got.train_x.tolist() == [[1, 2, 5], [3, 1, 2]]
    assert (got.train_y.tolist(), got.test_y.tolist()) == ([[2, 0, 5], [1, 2, 4]], [[1, 5, 5]])
    assert got.sample.vocabulary == 6
    of_numbers: Arrays = {"train_mask": np.array([[1, 1, 0]] * 4), "test_mask": np.ones((2, 3))}
    got = of_arrays(tmp_path, **NUMBERS, **of_numbers, mean=np.array(1.0), std=np.array(2.0))
    assert got.sample == Sample((3, 2), layout="channels_last")
    assert got.encode(got.train_x[1:2]).tolist() == [[[1.0, 1.0], [1.5, 1.0], [-0.5, 0.0]]], "it is not normalised"


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (NUMBERS, {"train_x": np.full((4, 3), np.nan)}, "train_x holds NaN, infinity"),
        (NUMBERS, {"train_y": np.array([1, 2, 3, 1e60])}, "train_y holds NaN, infinity, or numbers beyond float32"),
        (NUMBERS, {"test_x": np.ones((2, 4))}, "samples of different shapes"),
        (NUMBERS, {"test_x": np.ones((2, 3), int)}, "train_x is float32, test_x is int64"),
        (NUMBERS, {"train_x": np.zeros((4, 3), np.uint8)}, "save what is no image as float32"),
        (NUMBERS, {"train_x": np.zeros((4, 3), bool)}, "train_x has dtype bool"),
        (NUMBERS, {"train_y": np.ones(3)}, r"train_y has shape \(3,\), expected \(4, ...\)"),
        (NUMBERS, {"mean": np.array(0.0)}, "mean and std go together"),
        (NUMBERS, {"mean": np.zeros(2), "std": np.ones(2)}, r"mean has shape \(2,\), a sample \(3,\)"),
        (NUMBERS, {"mean": np.zeros(3), "std": np.zeros(3)}, "std holds values that are not above 0"),
        (NUMBERS, {"train_mask": np.ones((4, 3))}, "train_mask and test_mask go together"),
        (NUMBERS, {"train_group": np.ones(4)}, "train_group has dtype float64"),
        (TOKENS, {"test_x": np.array([[-1, 0, 0]])}, r"indices -1\.\.4"),
        (TOKENS, {"vocabulary": np.array(3)}, r"indices 0\.\.3, expected 0\.\.2"),
        (TOKENS, {"train_mask": np.ones((2, 3)), "test_mask": np.ones((1, 3))}, "needs the key padding"),
        (TOKENS, {"padding": np.array(1.5)}, "padding is one integer"),
        (TOKENS, {f"{part}_y": np.zeros((n, 3, 4), int) for part, n in (("train", 2), ("test", 1))}, r"\(n, length\)"),
    ],
)
def test_wrong_arrays_are_refused_by_their_key(tmp_path: Path, base: Arrays, changes: Arrays, message: str) -> None:
    with pytest.raises(DataMalformed, match=message) as caught:
        of_arrays(tmp_path, **{**base, **changes})
    assert caught.value.field == "data.file"


# ---- tables

TABLE = """age,smokes,ward,ill,split
30,no,north,yes,train
50,yes,south,no,train
40,no,north,no,train
70,sometimes,south,yes,test
"""
MANY_TEXTS = "a,b\n" + "".join(f"n{i},1\n" for i in range(1001))


def test_a_table_has_numbers_categories_classes_and_groups(tmp_path: Path) -> None:
    got = table_of(tmp_path, TABLE, target="ill", group="ward")
    assert (got.sample, got.target) == (Sample((4,)), Classes(2))
    assert got.train_x.tolist() == [[30, 1, 0, 0], [50, 0, 0, 1], [40, 1, 0, 0]]
    assert got.train_y.tolist() == [1, 0, 0]
    assert got.train_group is not None
    assert got.test_group is not None
    assert (got.train_group.tolist(), got.test_group.tolist()) == ([0, 1, 0], [1])
    std = np.std([30, 50, 40])
    np.testing.assert_allclose(got.encode(got.test_x)[0].numpy(), np.array([30 / std, 0, 1, 0]), rtol=1e-6)
    assert got.reading.lines() == (
        "inputs: age number, smokes 3 categories (no, sometimes, yes)",
        "target: ill, 2 classes (no, yes)",
        "groups: 2 (north, south)",
        "column smokes: no training row has sometimes, which test rows have",
    )
    assert (got.reading.columns[0].mean, got.reading.columns[0].std) == (40.0, float(np.float32(std)))


def test_of_a_few_whole_numbers_the_spec_says_whether_they_are_classes(tmp_path: Path) -> None:
    text = "x,y\n" + "".join(f"{i * 2},{i % 3}\n" for i in range(30))
    with pytest.raises(DataMalformed, match="column y holds 3 different whole numbers: say whether they are classes"):
        table_of(tmp_path, text, target="y")
    assert table_of(tmp_path, text.replace(",2\n", ",2.5\n"), target="y").target == Numbers((1,))
    assert table_of(tmp_path, text, target="x").target.kind == "numbers"
    assert table_of(tmp_path, text, target="y", kind="numbers").target == Numbers((1,))
    got = table_of(tmp_path, text, target="y", kind="classes")
    assert got.target == Classes(3)
    assert np.bincount(got.test_y).tolist() == [2, 2, 2]  # a fifth of each class
    assert not set(got.test_x[:, 0]) & set(got.train_x[:, 0])


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        (TABLE, {"target": "sick"}, "there is no column 'sick'; it has age, smokes"),
        (TABLE, {"target": "ill", "group": "clinic"}, "there is no column 'clinic'"),
        (TABLE, {"target": "ill", "kind": "numbers"}, "line 2: .*column ill is 'yes', but 0 of its 4 cells are finite"),
        ("a,b\n1,2\n3\n", {"target": "b"}, "line 3: 1 cells, the header has 2"),
        ("a,b\n1,2\n,4\n", {"target": "b"}, "line 3: the cell of column a is empty"),
        ("a,a\n1,2\n", {"target": "a"}, "different column names"),
        ("a,b\n1,2\n", {"target": "b"}, "1 rows below its header"),
        ("a,split\n1.5,train\n2,x\n", {"target": "a"}, "column split says train or test"),
        (MANY_TEXTS, {"target": "b", "kind": "numbers"}, "column a has 1001 different texts"),
    ],
)
def test_a_wrong_table_is_refused_by_place(tmp_path: Path, text: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DataMalformed, match=message):
        table_of(tmp_path, text, **spec)


# ---- names and places


def test_a_name_with_a_dot_is_a_file_and_the_file_names_the_data_set() -> None:
    short = DataSpec.model_validate({"name": "My Data-2.npz"})
    assert (short.name, short.file) == ("my_data_2", "My Data-2.npz")
    for spec, name in (
        ({"name": "digits", "file": "flowers"}, "flowers"),  # a file over a spec's data
        ({"file": "mnist.npz"}, "data_mnist"),
        ({"name": "mine", "file": "mnist.npz"}, "mine"),
    ):
        assert DataSpec.model_validate(spec).name == name
    assert "file" not in DataSpec(name="mnist").model_dump()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"file": "../x.npz"}, "relative and without"),
        ({"file": "/x.npz"}, "relative and without"),
        ({"file": "x.csv"}, "target: the column of the table"),
        ({"file": "x.npz", "target": "y"}, "target is for a table"),
        ({"name": "mnist", "group": "y"}, "group is for a table"),
        ({"name": "mnist", "kind": "numbers"}, "kind goes with files and plug-ins"),
    ],
)
def test_options_that_do_not_fit_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSpec.model_validate(spec)


def test_a_file_that_is_not_there_or_elsewhere_or_of_another_kind_is_refused_by_its_field(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(DataUnavailable, match=r"put a\.npz into") as caught:
        opened(folder, file="a.npz")
    assert caught.value.field == "data.file"
    (tmp_path / "outside.npz").touch()
    (folder / "a.npz").symlink_to(tmp_path / "outside.npz")
    with pytest.raises(DataUnavailable, match=r"a\.npz is a link that leads out of .*data, where nothing is read"):
        opened(folder, file="a.npz")
    (folder / "a.doc").touch()
    with pytest.raises(BadInput, match="neither an"):
        opened(folder, file="a.doc")
    (tmp_path / "cache").touch()
    with pytest.raises(SystemRefused, match=r"/cache: File exists"):
        table_of(tmp_path, "x,y\n1,2\n", target="y")
