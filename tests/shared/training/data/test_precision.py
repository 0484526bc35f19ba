"""Arrays of float64 whose numbers float32 does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.training.data.dataset import Dataset
from shared.training.data.open_data import open_data
from shared.training.data.sources import DataMalformed
from shared.training.data.unseen import unseen
from shared.training.preprocessing import ModuleDesign, Preprocessing
from shared.training.specs import DataSpec

TIMES = 1_700_000_000 + np.random.default_rng(0).permutation(4000).reshape(2000, 2).astype(np.float64)


def opened(folder: Path, x: Any, **more: Any) -> Dataset:
    y = np.arange(len(x)) % 2
    np.savez(folder / "t.npz", train_x=x, train_y=y, test_x=x, test_y=y, **more)
    return open_data(DataSpec.model_validate({"file": "t.npz"}), data_dir=folder, cache_dir=folder / "cache")


@pytest.mark.parametrize("axis", [0, None])
def test_they_are_normalised_before_they_are_rounded(tmp_path: Path, axis: int | None) -> None:
    got = opened(tmp_path, TIMES, mean=TIMES.mean(axis), std=TIMES.std(axis))
    z = got.encode(got.train_x).double().numpy()
    assert len(np.unique(z)) == 4000
    np.testing.assert_allclose(z, (TIMES - TIMES.mean(axis)) / TIMES.std(axis), atol=1e-6)
    assert np.array_equal(got.encode(got.test_x), z.astype(np.float32))
    with pytest.raises(DataMalformed, match="whose differences float32 does not hold: save their mean and std"):
        opened(tmp_path, TIMES)


def test_what_float32_holds_stays_as_it_is(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(240, 45, (100, 3))
    assert np.array_equal(opened(tmp_path, x).train_x, x.astype(np.float32))
    got = opened(tmp_path, x, mean=x.mean(0), std=x.std(0))
    assert np.array_equal(got.train_x, x.astype(np.float32))
    assert opened(tmp_path, np.full((5, 2), 0.1) + 1e9).train_x.shape == (5, 2)


@pytest.mark.parametrize("dtype", [">f8", np.longdouble])
def test_numbers_in_another_order_of_bytes_or_of_more_bits_are_treated_alike(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(DataMalformed, match=r"t\.npz: train_x holds numbers, up to 170000.*float32 does not hold"):
        opened(tmp_path, TIMES.astype(dtype))
    got = opened(tmp_path, TIMES.astype(dtype), mean=TIMES.mean(0), std=TIMES.std(0))
    assert len(np.unique(got.encode(got.train_x).numpy())) == 4000


def test_new_samples_are_normalised_as_those_were(tmp_path: Path) -> None:
    got = opened(tmp_path, TIMES, mean=TIMES.mean(0), std=TIMES.std(0))
    kept = Preprocessing.of(DataSpec.model_validate({"file": "t.npz"}), got, ModuleDesign(name="mlp"), None)
    kept = Preprocessing.of_json(kept.to_json())
    new = unseen(TIMES[:9], kept).x
    assert np.array_equal(new, got.train_x[:9])
    np.savez(tmp_path / "new.npz", x=TIMES[:9].astype(">f8"))
    assert np.array_equal(unseen(tmp_path / "new.npz", kept).x, new)
