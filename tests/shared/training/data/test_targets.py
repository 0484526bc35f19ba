"""What targets of arrays are: as other tools write them, read as what they are or asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from shared.training.data.checks import checked
from shared.training.data.dataset import Dataset
from shared.training.data.plain import plain
from shared.training.data.reading import Read
from shared.training.data.sources import DataMalformed
from shared.training.description import Classes, Labels, Numbers, Tokens
from tests.shared.training.data.test_files import of_arrays, opened

Y = np.arange(60) % 6
MANY = np.arange(60) * 0.11
ROWS = np.arange(180).reshape(60, 3)
SHARES = np.random.default_rng(0).dirichlet([1, 1, 1], 60)
FLAGS = np.tile([[0, 1, 1], [0, 0, 0], [1, 0, 1], [1, 0, 0], [0, 0, 1], [1, 1, 1]], (10, 1))
ONE_HOT = np.eye(3, dtype=np.int64)[Y % 3]


def with_targets(folder: Path, y: Any, kind: str | None = None, **more: Any) -> Dataset:
    """Opens 40 training and 20 test samples with these targets, in this order."""
    x = np.arange(180.0).reshape(60, 3) / 180
    return of_arrays(folder, kind, train_x=x[:40], train_y=y[:40], test_x=x[40:], test_y=y[40:], **more)


def labels_of(data: Dataset) -> list[Any]:
    return [*data.train_y.tolist(), *data.test_y.tolist()]


@pytest.mark.parametrize(
    ("y", "kind"),
    [
        (Y, None),
        (Y.astype(np.uint8), None),
        (Y[:, None], None),
        (Y[:, None], "classes"),
        (np.eye(6, dtype=np.int64)[Y], None),
        (np.eye(6, dtype=bool)[Y], None),
        (np.eye(6, dtype=np.float32)[Y], "classes"),
        (Y.astype(np.float64), "classes"),
        (Y[:, None].astype(np.float32), "classes"),
    ],
)
def test_classes_are_read_however_they_are_written(tmp_path: Path, y: Any, kind: str | None) -> None:
    got = with_targets(tmp_path, y, kind)
    assert got.target == Classes(6)
    assert labels_of(got) == Y.tolist()
    assert got.reading.classes == ()


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (Y + 1, ("1", "2", "3", "4", "5", "6")),
        (np.where(Y > 2, 1, -1), ("-1", "1")),
        (np.where(Y > 2, 255, 0), ("0", "255")),
        (Y * 1_000_003 + 5, tuple(str(c * 1_000_003 + 5) for c in range(6))),
        (Y.astype(np.uint64) + 2**63, tuple(str(c + 2**63) for c in range(6))),
        (Y > 2, ("False", "True")),
        (np.array([f"kind {c}" for c in Y]), tuple(f"kind {c}" for c in range(6))),
        (np.array([b"b\xc3\xa4r", b"ant"] * 30), ("ant", "bär")),
    ],
)
def test_other_labels_are_numbered_by_order_with_their_names(tmp_path: Path, y: Any, names: tuple[str, ...]) -> None:
    got = with_targets(tmp_path, y)
    assert (got.target, got.reading.classes) == (Classes(len(names)), names)
    values = np.unique(y).tolist()
    assert labels_of(got) == [values.index(value) for value in y.tolist()]


def test_texts_that_are_numbers_are_numbered_by_size(tmp_path: Path) -> None:
    texts = np.array(["10", "9", "2.5"] * 20)
    with pytest.raises(DataMalformed, match=r"texts that are numbers.*data\.kind has to say whether they are classes"):
        with_targets(tmp_path, texts)
    got = with_targets(tmp_path, texts, "classes")
    assert (got.reading.classes, got.train_y[:3].tolist()) == (("2.5", "9", "10"), [2, 1, 0])
    assert with_targets(tmp_path, texts, "numbers").train_y[:3].tolist() == [[10.0], [9.0], [2.5]]


@pytest.mark.parametrize(
    ("y", "asked"),
    [
        (Y.astype(np.float64), r"6 different whole numbers \(0 to 5\) as float64: .* classes or numbers"),
        (Y[:, None].astype(np.float32) + 3, r"6 different whole numbers \(3 to 8\)"),
        ((np.arange(60) % 25 + 1).astype(np.float64), r"25 different whole numbers \(1 to 25\)"),
        (np.eye(6, dtype=np.float32)[Y], r"rows of 0 and 1 with a single 1: .* classes \(one-hot\), labels or numbers"),
        (FLAGS.astype(np.float32), r"rows of 0 and 1: .* or numbers"),
        (FLAGS, r"labels \(any .*\), tokens \(a sequence\) or numbers"),
        (np.arange(60) * 37 + 180_000, r"60 different whole numbers \(180000 to 182183\): .* classes or numbers"),
        (np.arange(60) % 30 + 18, r"30 different whole numbers \(18 to 47\): .* classes or numbers"),
        (np.arange(60), r"60 different whole numbers \(0 to 59\)"),
    ],
)
def test_targets_that_may_be_two_things_are_asked(tmp_path: Path, y: Any, asked: str) -> None:
    with pytest.raises(DataMalformed, match=f"train_y (has|holds) .*{asked}"):
        with_targets(tmp_path, y)
    assert isinstance(with_targets(tmp_path, y, "numbers").target, Numbers)


@pytest.mark.parametrize(
    ("y", "kind", "message"),
    [
        (np.array(["", "a", "b"] * 20), None, "train_y holds '', which is no class's name"),
        (np.array(["a", "b", "nan"] * 20), "classes", "train_y holds 'nan', which is no class's name"),
        (Y - 1, None, "train_y holds -1 beside 5 other labels, which may mean that a label is not known"),
        (np.where(Y == 3, 255, Y % 3), None, "train_y holds 255 beside 3 other labels"),
        (np.array([1, 2, 255])[Y % 3], None, "holds 255 beside 2 other labels, which may mean"),
        (np.array(["a", "b"] * 30), "numbers", "train_y holds texts such as 'b', which are no numbers"),
        (np.array([["a", "b"]] * 60), None, r"train_y has texts of shape \(40, 2\)"),
        (Y.astype(object), None, "train_y holds Python objects, which are not read; save numbers or texts"),
        (Y / 2, "tokens", "train_y holds .*0.5.*; classes and tokens are whole numbers or texts"),
        (np.where(Y > 0, Y, np.nan), "classes", "train_y holds .*nan"),
        (np.stack([Y, Y], 1), "classes", r"train_y has shape \(40, 2\), expected \(n,\) for classes, or one-hot rows"),
        (SHARES, "classes", r"holds 0\.\d+; .* save the largest's number \(argmax\)"),
        (Y.astype("datetime64[D]"), None, "train_y has dtype datetime64"),
        (Y * 1j, None, "train_y has dtype complex128"),
        (FLAGS, None, "data.kind has to say whether they are labels"),
        (FLAGS.astype(np.uint8), None, "data.kind has to say whether they are labels"),
        (FLAGS[:, 0], "labels", "one label of two is a class"),
        (np.where(FLAGS & [1, 0, 0], -1, FLAGS), "labels", "20 values that are neither 0 nor 1, such as -1"),
        (np.where(FLAGS, np.nan, 0.0), "labels", "neither 0 nor 1, such as nan"),
        (FLAGS[:, :, None], "labels", r"labels are \(40, labels\)"),
    ],
)
def test_wrong_targets_are_refused_by_their_key(tmp_path: Path, y: Any, kind: str | None, message: str) -> None:
    with pytest.raises(DataMalformed, match=message):
        with_targets(tmp_path, y, kind)
    if np.array_equal(y, Y - 1):  # what looks like a marker is a class where the spec says so
        assert with_targets(tmp_path, y, "classes").reading.classes == ("-1", "0", "1", "2", "3", "4")


def test_both_parts_are_read_as_one(tmp_path: Path) -> None:
    x, numbers = np.ones((6, 2)), np.arange(6) % 3

    def read(train_y: Any, test_y: Any, kind: str | None = None, x: Any = x) -> Dataset:
        return of_arrays(tmp_path, kind, train_x=x, train_y=train_y, test_x=x, test_y=test_y)

    names = np.array(["b", "b", "d"] * 2)
    got = read(names, np.array(["a", "b", "d"] * 2))
    assert (got.train_y.tolist(), got.test_y.tolist()) == ([1, 1, 2] * 2, [0, 1, 2] * 2)
    assert got.reading.notes == ("classes with test samples and no training sample: a",)
    column = read(numbers / 8, numbers[:, None] / 8)  # one value for each sample
    assert (column.target, column.train_y.tolist()) == (Numbers((1,)), column.test_y.tolist())
    assert read(FLAGS[:6], FLAGS[:6], x=1 - FLAGS[:6]).target == Tokens(2, 3), "0 and 1 of the samples' shape"
    for train_y, test_y, message in (
        (names, numbers, r"train_y and test_y differ: <U1 .* int64"),
        (numbers, np.eye(3, dtype=int)[numbers], r"differ: int64 \(\) and int64 \(3,\)"),
        (numbers, numbers + 0.0, "train_y and test_y differ: int64"),
    ):
        with pytest.raises(DataMalformed, match=message):
            read(train_y, test_y)
    assert read(numbers, numbers + 0.0, "classes").test_y.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(DataMalformed, match=r"train_x has dtype timedelta64\[s\], .*; save them as float32"):
        read(numbers, numbers, x=np.ones((6, 2), "timedelta64[s]"))


def test_a_known_number_of_classes_keeps_labels_as_they_are(tmp_path: Path) -> None:
    got = with_targets(tmp_path, Y + 1, n_classes=np.array(9))
    assert (got.target, labels_of(got)) == (Classes(9), (Y + 1).tolist())
    assert got.reading.notes == ("classes without any sample: 0, 7, 8",)
    with pytest.raises(DataMalformed, match=r"train_y has labels 1\.\.6, expected 0\.\.5 \(without n_classes"):
        with_targets(tmp_path, Y + 1, n_classes=np.array(6))


def test_groups_may_be_names_and_unknown_keys_are_named(tmp_path: Path) -> None:
    wards = np.array(["north", "south", "east"] * 20)
    got = with_targets(tmp_path, Y, train_group=wards[:40], test_group=wards[40:], val_x=Y)
    assert got.reading.groups == ("east", "north", "south")
    assert got.train_group is not None
    assert got.train_group[:3].tolist() == [1, 2, 0]
    assert got.reading.notes == ("keys that are not read: val_x",)
    with pytest.raises(DataMalformed, match="train_group and test_group are texts and integers"):
        with_targets(tmp_path, Y, train_group=wards[:40], test_group=Y[40:])
    np.savez(tmp_path / "mine.npz", x_train=Y, y_train=Y)
    with pytest.raises(DataMalformed, match=r"train_x, train_y, test_x, test_y is missing .* it has x_train, y_train"):
        opened(tmp_path, file="mine.npz")


@pytest.mark.parametrize(
    ("y", "kind", "target"),
    [
        (MANY, None, Numbers((1,))),
        (MANY[:, None, None], None, Numbers((1, 1))),
        (FLAGS, "numbers", Numbers((3,))),
        (FLAGS, "tokens", Tokens(2, 3)),
        (ROWS % 7, None, Tokens(7, 3)),
        (FLAGS.argmax(1), None, Classes(3)),
        (ONE_HOT, None, Classes(3)),
        (ONE_HOT.astype(bool), None, Classes(3)),
        (ONE_HOT.astype(bool), "labels", Labels(3)),
        (FLAGS.astype(bool), None, Labels(3)),
        *((FLAGS.astype(dtype), "labels", Labels(3)) for dtype in ("int64", "uint8", "bool", "float32", "float64")),
    ],
)
def test_what_can_be_read_in_one_way_is_not_asked_about(tmp_path: Path, y: Any, kind: str | None, target: Any) -> None:
    got = with_targets(tmp_path, y, kind)
    assert got.target == target
    if target == Labels(3):
        assert got.train_y.dtype == np.float32
        np.testing.assert_array_equal(np.concatenate([got.train_y, got.test_y]), y)


# ---- arrays of a plug-in's function


def objects(*values: Any) -> npt.NDArray[Any]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def test_arrays_of_a_function_may_be_lists_columns_of_objects_or_tensors() -> None:
    x = np.ones((3, 2)).tolist()
    arrays: Any = {"train_x": x, "train_y": objects("b", "a", "b"), "test_x": x, "test_y": ["a", "b", "a"], "also": [1]}
    found, description, reading = checked(Read(arrays), None, "mine")
    assert (description.target, found["train_y"].tolist()) == (Classes(2), [1, 0, 1])
    assert (reading.classes, reading.notes) == (("a", "b"), ("keys that are not read: also",))
    for given in (torch.ones(2, 3, requires_grad=True), torch.ones(2, 3).bfloat16(), torch.ones(2, 3).half()):
        assert np.array_equal(plain(given, "mine: train_x"), np.ones((2, 3)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (objects("a", None), "array of objects, such as NoneType"),
        (objects([1, 2], [1, 2, 3]), "array of objects, such as list: .*series of unequal lengths are padded"),
        (np.ma.masked_array([1, 2], mask=[False, True]), "masked values"),
        (np.array([b"\xff"]), "bytes that are no text"),
        ([[1.0], [1.0, 2.0]], "mine: train_y is a list that is no array: .*inhomogeneous.*series of unequal lengths"),
        (np.array(["a", 1], dtype=object), "such as texts beside numbers"),
    ],
)
def test_what_is_no_plain_array_is_refused(given: Any, message: str) -> None:
    with pytest.raises(DataMalformed, match=message):
        plain(given, "mine: train_y")


def test_ids_of_either_sign_stay_apart_beyond_float64(tmp_path: Path) -> None:
    x, ids = np.ones((40, 2)), 2**60 + np.arange(40) % 4
    got = of_arrays(tmp_path, "classes", train_x=x, train_y=ids.astype(np.uint64), test_x=x, test_y=ids)
    assert got.reading.classes == tuple(str(2**60 + n) for n in range(4))
    with pytest.raises(DataMalformed, match=f"holds {2**60 * 8 + 3 * 8}, beyond int64: save such ids as texts"):
        of_arrays(tmp_path, "classes", train_x=x, train_y=ids.astype(np.uint64) * 8, test_x=x, test_y=ids)
    groups: dict[str, Any] = {f"{part}_group": ids.astype(np.uint64) * 8 for part in ("train", "test")}
    with pytest.raises(DataMalformed, match=r"mine\.npz: train_group holds .* beyond int64"):
        of_arrays(tmp_path, train_x=x, train_y=ids % 4, test_x=x, test_y=ids % 4, **groups)


def test_soft_labels_and_names_that_differ_in_case_are_told(tmp_path: Path) -> None:
    assert "shares that sum to 1, taken as numbers" in " ".join(with_targets(tmp_path, SHARES).reading.notes)
    assert not with_targets(tmp_path, SHARES, "numbers").reading.notes
    names = with_targets(tmp_path, np.array(["ill", "Ill", "well"])[Y % 3])
    assert "'Ill' and 'ill'" in " ".join(names.reading.notes)
