"""Wrong labels and bad images, compared with numpy and scipy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import uniform_filter
from scipy.stats import chisquare

from shared.training.data.faults import NOISE_SD, bad_images, own_copy, wrong_labels

EVERY = np.arange(10)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def images(n: int = 4, *channels: int) -> np.ndarray[Any, Any]:
    return rng(1).integers(0, 256, (n, 9, 7, *channels), dtype=np.uint8)


def test_wrong_labels_are_flipped_shifted_or_uniform_whatever_the_right_ones_are() -> None:
    assert wrong_labels(EVERY, 10, "flipped", rng()).tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert wrong_labels(EVERY, 10, "shifted", rng()).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    y = np.zeros(20_000, np.int64)
    found = wrong_labels(y, 10, "random", rng())
    assert chisquare(np.bincount(found, minlength=10)).pvalue > 0.001
    assert np.array_equal(found, wrong_labels(y + 3, 10, "random", rng()))


@pytest.mark.parametrize("channels", [(), (3,)], ids=["grey", "coloured"])
def test_blur_is_the_mean_of_three_by_three_pixels(channels: tuple[int, ...]) -> None:
    x = images(4, *channels)
    size = (1, 3, 3, *(1 for _ in channels))
    plain = np.floor(uniform_filter(x.astype(np.float64), size, mode="nearest") + 0.5 + 1e-9)
    assert np.array_equal(bad_images(x, "blur", rng()), plain)


def test_noise_is_gaussian_and_clipped_to_eight_bits() -> None:
    grey, x = np.full((50, 28, 28), 128, np.uint8), images()
    found = bad_images(grey, "noise", rng()).astype(np.float64)
    assert abs(found.mean() - 128) < 1
    inside = rng(2).normal(128, NOISE_SD, 1_000_000).clip(0, 255)
    assert abs(found.std() - inside.std()) < 1
    plain = np.rint((x + rng().normal(0, NOISE_SD, x.shape)).clip(0, 255))
    assert np.array_equal(bad_images(x, "noise", rng()), plain)


@pytest.mark.parametrize("mapped", [True, False], ids=["memory-mapped", "in memory"])
def test_a_copy_can_be_written_and_leaves_the_data_as_they_are(mapped: bool, tmp_path: Path) -> None:
    x = images()
    np.save(tmp_path / "x.npy", x)
    stored = np.load(tmp_path / "x.npy", mmap_mode="r") if mapped else x.copy()
    for given, plain in ((stored, x), (stored[1:], x[1:])):
        copy = own_copy(given)
        assert np.array_equal(copy, plain)
        copy[:] = 0
        assert np.array_equal(given, plain)
    assert np.array_equal(np.load(tmp_path / "x.npy"), x)
