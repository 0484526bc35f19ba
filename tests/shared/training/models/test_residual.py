"""ResNets are torchvision's, bit for bit, without torchvision being imported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shared.core.randomness import seeded_default_generator
from shared.training.models.classifier import Classifier
from shared.training.models.residual import resnet
from shared.training.torchvision_compat import torchvision

SHAPE = (3, 16, 16)


def from_torchvision(depth: int) -> Classifier:
    """torchvision's network with our stem and last layer."""
    body: Any = getattr(torchvision().models, f"resnet{depth}")(weights=None)
    body.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
    n_features = body.fc.in_features
    body.maxpool, body.fc = nn.Identity(), nn.Identity()
    return Classifier(body, n_features, 10)


def trained(model: Classifier) -> dict[str, torch.Tensor]:
    """Gradients of a batch, its outputs, and the state after it."""
    x = torch.rand((4, *SHAPE), generator=torch.Generator().manual_seed(1))
    outputs = model(x)
    outputs.square().sum().backward()
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"outputs": outputs.detach(), **gradients, **model.state_dict()}


@pytest.mark.parametrize("depth", [18, *(pytest.param(depth, marks=pytest.mark.slow) for depth in (34, 50))])
def test_same_names_values_and_results_as_torchvision(depth: int) -> None:
    with seeded_default_generator(3):
        expected = from_torchvision(depth)
    with seeded_default_generator(3):
        found = resnet(depth)(SHAPE, 10)
    assert list(found.state_dict()) == list(expected.state_dict())
    ours, theirs = trained(found), trained(expected)
    assert ours.keys() == theirs.keys()
    assert [name for name, tensor in theirs.items() if not torch.equal(tensor, ours[name])] == []
