"""Moments of what batch-norm receives, and the statistics that follow from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from shared.training.batch_norm import moments, statistics_in, statistics_of


def two_layers() -> nn.Sequential:
    """Returns two linear layers with batch-norm, dropout between them, and statistics that fit no data."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2), nn.BatchNorm1d(2)
        )
    for name, tensor in model.named_buffers():
        tensor.fill_(7 if "num" in name else 3.0)
    return model


def test_moments_are_those_of_batches_normalised_by_their_own_statistics() -> None:
    """In numpy; the two batches differ in size."""
    model, x = two_layers(), np.random.default_rng(1).normal(2, 3, (10, 3)).astype(np.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = (x[:7], x[7:])
    found = moments(model, map(torch.from_numpy, batches))
    weights = {name: tensor.numpy().astype(float) for name, tensor in before.items()}
    first = [batch @ weights["0.weight"].T + weights["0.bias"] for batch in batches]
    scaled = [(each - each.mean(0)) / np.sqrt(each.var(0) + 1e-5) for each in first]
    second = [np.maximum(each, 0) @ weights["4.weight"].T + weights["4.bias"] for each in scaled]
    for name, parts in (("1", first), ("5", second)):
        values = np.concatenate(parts)
        np.testing.assert_allclose(found[f"{name}.running_mean"], values.mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found[f"{name}.running_var"], (values**2).mean(0), rtol=1e-4)
        taken = statistics_of(found)
        np.testing.assert_allclose(taken[f"{name}.running_var"], values.var(0), rtol=1e-4)
        assert torch.equal(taken[f"{name}.running_mean"], found[f"{name}.running_mean"])
    assert found.keys() == statistics_in(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(module.track_running_stats for module in model.modules() if isinstance(module, nn.BatchNorm1d))


def test_images_count_by_pixel_and_rounding_makes_no_negative_variance() -> None:
    x = torch.randn(5, 2, 3, 4, generator=torch.Generator().manual_seed(1))
    taken = statistics_of(moments(nn.Sequential(nn.BatchNorm2d(2)), [x]))
    np.testing.assert_allclose(taken["0.running_mean"], x.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(taken["0.running_var"], x.var((0, 2, 3), unbiased=False), rtol=1e-5)
    mean = torch.tensor([1000.0])
    taken = statistics_of({"a.running_mean": mean, "a.running_var": mean.square() - 0.1})
    assert taken["a.running_var"].tolist() == [0]
    assert moments(nn.Linear(3, 2), [torch.zeros(2, 3)]) == {}, "a model without batch-norm has none"
