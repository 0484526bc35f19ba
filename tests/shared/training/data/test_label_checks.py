"""Targets of several labels: what they are read as, asked about and refused for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.training.data.dataset import Dataset
from shared.training.data.open_data import open_data
from shared.training.data.sources import DataMalformed
from shared.training.description import Classes, Labels, Numbers, Target, Tokens
from shared.training.specs import DataSpec, TargetKind

Y = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 1], [1, 0, 0], [0, 0, 1], [1, 1, 1]])
ONE_HOT = np.eye(3, dtype=np.int64)[[0, 1, 2, 2, 1, 0]]


def opened(folder: Path, y: Any, kind: TargetKind | None = None, x: Any = None) -> Dataset:
    x = np.random.default_rng(0).normal(size=(6, 4)) if x is None else x
    np.savez(folder / "mine.npz", train_x=x[:4], train_y=y[:4], test_x=x[4:], test_y=y[4:])
    return open_data(DataSpec(file="mine.npz", kind=kind), data_dir=folder, cache_dir=folder / "cache")


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float32"])
def test_labels_are_stored_as_floats_of_0_and_1(tmp_path: Path, dtype: str) -> None:
    got = opened(tmp_path, Y.astype(dtype), "labels")
    assert got.target == Labels(3)
    assert got.train_y.dtype == np.float32
    np.testing.assert_array_equal(np.concatenate([got.train_y, got.test_y]), Y)


@pytest.mark.parametrize(
    ("y", "kind", "target"),
    [
        (Y.astype(bool), None, Labels(3)),
        (ONE_HOT.astype(bool), "labels", Labels(3)),
        (Y, "numbers", Numbers((3,))),
        (Y, "tokens", Tokens(2, 3)),
        (Y.argmax(1), None, Classes(3)),
    ],
)
def test_what_can_be_read_in_one_way_is_not_asked_about(
    tmp_path: Path, y: Any, kind: TargetKind | None, target: Target
) -> None:
    assert opened(tmp_path, y, kind).target == target


def test_0_and_1_of_the_samples_shape_are_the_next_tokens(tmp_path: Path) -> None:
    assert opened(tmp_path, Y, x=1 - Y).target == Tokens(2, 3)


@pytest.mark.parametrize(
    ("y", "kind", "message"),
    [
        (Y, None, "has to say `labels`"),
        (Y.astype(np.uint8), None, "has to say `labels`"),
        (ONE_HOT, None, "one-hot classes are saved as their numbers"),
        (ONE_HOT.astype(bool), None, "one-hot classes are saved as their numbers"),
        (Y[:, 0], "labels", "one label of two is a class"),
        (np.where(Y & [1, 0, 0], -1, Y), "labels", "2 values that are neither 0 nor 1, such as -1"),
        (np.where(Y, np.nan, 0.0), "labels", "neither 0 nor 1, such as nan"),
        (Y[:, :, None], "labels", r"labels are \(4, labels\)"),
    ],
)
def test_what_may_be_labels_is_asked_about_and_other_values_are_refused(
    tmp_path: Path, y: Any, kind: TargetKind | None, message: str
) -> None:
    with pytest.raises(DataMalformed, match=message):
        opened(tmp_path, y, kind)
