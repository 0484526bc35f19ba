"""Channel statistics: exact sums in one pass, which can be added; normalised images have mean 0 and deviation 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shared.training.data.augmentation import as_floats
from shared.training.data.channel_statistics import Statistics, measured, normaliser, pooled


def images(n: int, seed: int) -> torch.Tensor:
    """Three channels that differ in brightness and spread."""
    values = np.random.default_rng(seed).normal([60, 120, 200], [10, 30, 20], (n, 9, 7, 3))
    return torch.from_numpy(values.clip(0, 255).astype(np.uint8).transpose(0, 3, 1, 2).copy())


def test_one_pass_over_blocks_gives_numpys_mean_and_population_deviation() -> None:
    x = images(50, 0)
    found = measured(iter(x.split(7)))
    shares = x.numpy().astype(np.float64) / 255
    assert found.n == 50 * 9 * 7
    assert found.mean == pytest.approx(shares.mean(axis=(0, 2, 3)), rel=1e-12)
    assert found.std == pytest.approx(shares.std(axis=(0, 2, 3)), rel=1e-12)
    assert found == measured([x])
    parts = {"device-1": images(30, 1), "device-0": images(10, 2), "device-2": images(1, 3)}
    known = {client: measured([of_client]) for client, of_client in parts.items()}
    assert pooled(known) == measured([torch.cat(list(parts.values()))]), "a pool of clients has all their images"
    assert pooled({}) is None


def test_normalised_images_have_mean_0_and_deviation_1_in_each_channel() -> None:
    x = images(50, 0)
    transform = normaliser(measured([x]))
    assert transform is not None
    z = transform(as_floats(x)).to(torch.float64)
    assert z.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (z.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5
    other = transform(as_floats(images(50, 1).flip(1))).to(torch.float64)
    assert other.mean(dim=(0, 2, 3)).abs().max() > 1


def test_images_of_one_colour_do_not_divide_by_zero() -> None:
    flat = torch.full((4, 1, 3, 3), 128, dtype=torch.uint8)
    transform = normaliser(measured([flat]))
    assert transform is not None
    assert transform(as_floats(flat)).abs().max() < 1e-4
    assert normaliser(None) is None
    assert normaliser(Statistics(n=0, sums=(), squares=())) is None
