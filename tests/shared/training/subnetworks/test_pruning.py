"""Which units and weights are pruned, compared with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from shared.training.evaluation import evaluate
from shared.training.models import Classifier, build
from shared.training.subnetworks.pruning import importance, kept_units, magnitude_mask, n_pruned
from shared.training.subnetworks.unit_graph import units_of


def test_pruned_units_have_the_given_number_and_the_largest_weights_by_absolute_value_stay() -> None:
    given = ((0.29, 100), (0.2, 4), (0.25, 4), (0.95, 64), (0, 9))
    assert [n_pruned(*each) for each in given] == [29, 0, 1, 60, 0]
    weights = torch.tensor([[0.1, -3.0, 2.0], [0.0, -0.5, 1.0]])
    assert magnitude_mask(weights, 0.5).tolist() == [[False, True, True], [False, False, True]]
    assert magnitude_mask(weights, 0.0).all()
    assert magnitude_mask(torch.ones(4), 0.5).tolist() == [True, True, False, False]


def test_channels_are_ranked_by_scale_and_neurons_by_activation() -> None:
    body = nn.Sequential(
        nn.Conv2d(1, 3, 1, bias=False), nn.ReLU(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2), nn.ReLU()
    )
    model = Classifier(body, 2, 2)
    with torch.no_grad():
        model.get_parameter("features.2.weight").copy_(torch.tensor([-2.0, 0.5, 1.0]))
        model.get_parameter("features.4.weight").zero_()
        model.get_parameter("features.4.bias").copy_(torch.tensor([3.0, -4.0]))
    found = importance(model.train(), units_of(model, (1, 2, 2)), [torch.zeros(3, 1, 2, 2), torch.zeros(1, 1, 2, 2)])
    assert found["features.0"].tolist() == [2.0, 0.5, 1.0]
    assert found["features.4"].tolist() == [3.0, 0.0]  # outputs of the ReLU, not its inputs
    assert model.training


def test_activation_is_the_mean_over_images_and_pixels_for_any_batches() -> None:
    """Without batch-norm channels count by it too; against numpy on the outputs of a hook."""
    model = build("cnn_6_16", (1, 8, 8), 10, seed=0)
    units, x = units_of(model, (1, 8, 8)), torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    seen: list[torch.Tensor] = []
    handle = model.get_submodule("features.1").register_forward_hook(lambda _m, _i, out: seen.append(out.detach()))
    found = importance(model, units, [x[:2], x[2:]])
    handle.remove()
    expected = abs(torch.cat(seen).numpy().astype("float64")).mean((0, 2, 3))
    assert found["features.0"].tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert found["features.0"].std() > 0.01
    assert importance(model, units, [])["features.0"].tolist() == [0.0] * 6, "without images all are equal"


def test_activation_that_serves_several_layers_shows_none_of_them() -> None:
    relu = nn.ReLU()
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), relu, nn.Linear(3, 2), relu)
    units = units_of(Classifier(body, 2, 2), (1, 2, 2))
    assert [layer.output_module for layer in units.layers] == ["features.1", "features.3", "head"]


def test_residual_groups_are_ranked_by_the_mean_of_their_scales() -> None:
    model = build("resnet18", (3, 8, 8), 10, seed=0)
    units = units_of(model, (3, 8, 8))
    scales = [layer.scale for layer in units.makers("features.conv1")]
    assert scales == ["features.bn1.weight", "features.layer1.0.bn2.weight", "features.layer1.1.bn2.weight"]
    with torch.no_grad():
        for value, name in zip((0.5, -1.0, 3.0), scales, strict=True):
            model.get_parameter(name or "").fill_(value)
    assert importance(model, units, [])["features.conv1"].tolist() == [1.5] * 64


def test_least_important_units_are_pruned_of_equal_ones_the_last_and_one_stays() -> None:
    counts = {"a": torch.tensor([0.3, 0.1, 0.2, 0.4]), "b": torch.ones(4), "c": torch.tensor([1.0, 2.0])}
    found = kept_units(counts, {"a": 0.5, "b": 0.5, "c": 1.0})
    assert {group: kept.tolist() for group, kept in found.items()} == {"a": [0, 3], "b": [0, 1], "c": [1]}
    assert kept_units(counts, {"a": 0.25})["a"].tolist() == [0, 2, 3]
    assert kept_units(counts, {})["b"].tolist() == [0, 1, 2, 3]
    tied = {"a": torch.tensor([0.3, 0.1, 0.3, 0.4]), "b": torch.ones(4)}
    for order in ([3, 2, 1, 0], [1, 3, 0, 2], [0, 1, 2, 3]):  # or in the order that is given
        found = kept_units(tied, {"a": 0.5, "b": 0.5}, dict.fromkeys("ab", torch.tensor(order)))
        assert found["a"].tolist() == sorted([3, min((0, 2), key=order.index)])
        assert found["b"].tolist() == sorted(order[:2])


def test_ranks_do_not_depend_on_earlier_use_of_the_model() -> None:
    """Training and evaluation lay a model out channels-last for good, in which sums are rounded otherwise."""
    shape, images = (1, 16, 16), torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    found = []
    for used in (False, True):
        model = build("cnn_6_16", shape, 7, seed=1)
        if used:
            evaluate(model, np.zeros((2, 16, 16), np.uint8), np.zeros(2, np.int64), [0, 1])
        found.append(importance(model, units_of(model, shape), [images]))
    assert all(torch.equal(each, found[1][group]) for group, each in found[0].items())
