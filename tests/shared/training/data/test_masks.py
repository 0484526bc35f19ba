"""Masks of sequences: new samples with a mask are those that a data set stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.core.errors import StrataError
from shared.training.data.open_data import open_data
from shared.training.data.unseen import unseen
from shared.training.preprocessing import ModuleDesign, Preprocessing
from shared.training.specs import DataSpec

RNG = np.random.default_rng(0)
N, LENGTH = 20, 7
REAL = np.arange(LENGTH) < RNG.integers(1, LENGTH + 1, (N, 1))
SERIES = RNG.normal(size=(N, LENGTH, 2))
WORDS = RNG.integers(1, 9, (N, LENGTH))


@pytest.mark.parametrize(
    ("x", "spec", "more"),
    [
        (SERIES[:, :, 0], {}, {}),
        (SERIES, {}, {}),
        (SERIES, {"layout": "channels_last"}, {}),
        (SERIES.transpose(0, 2, 1), {"layout": "channels_first"}, {}),
        (SERIES, {}, {"mean": np.array([1.0, 2.0]), "std": np.array([3.0, 4.0])}),
        (WORDS, {}, {"padding": 0}),
    ],
    ids=["one channel", "channels", "last", "first", "normalised", "indices"],
)
def test_new_sequences_get_their_mask_alike(tmp_path: Path, x: Any, spec: dict[str, Any], more: dict[str, Any]) -> None:
    y = np.arange(N) % 2
    np.savez(tmp_path / "s.npz", train_x=x, train_y=y, test_x=x, test_y=y, train_mask=REAL, test_mask=REAL, **more)
    said = DataSpec.model_validate({"file": "s.npz", **spec})
    data = open_data(said, data_dir=tmp_path, cache_dir=tmp_path / "cache")
    kept = Preprocessing.of(said, data, ModuleDesign(name="mlp"), None)
    np.savez(tmp_path / "new.npz", x=x[:5], mask=REAL[:5])
    new = unseen(tmp_path / "new.npz", kept).x
    assert new.dtype == data.train_x.dtype
    assert np.array_equal(new, data.train_x[:5])
    assert np.array_equal(unseen(tmp_path / "s.npz", kept).x, data.test_x)
    np.savez(tmp_path / "new.npz", x=x[:5], mask=REAL[:5, :-1])
    with pytest.raises(StrataError, match=r"the mask of new\.npz: x has shape \(5, 6\)"):
        unseen(tmp_path / "new.npz", kept)
