"""Makes the probes and two models available that are small enough for computation by hand."""

from __future__ import annotations

import pytest
from torch import nn

from shared.training import models
from shared.training.models import Classifier, Shape


@pytest.fixture(autouse=True)
def probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the probe algorithms loadable."""
    monkeypatch.setenv("STRATA_PLUGINS", "tests.probes")


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """`linear` is softmax regression; `conv_bn` has one convolution with batch-norm."""
    monkeypatch.setitem(models.MODELS, "linear", _linear)
    monkeypatch.setitem(models.MODELS, "conv_bn", _conv_bn)


def _linear(shape: Shape, n_classes: int) -> Classifier:
    n_inputs = shape[0] * shape[1] * shape[2]
    return Classifier(nn.Flatten(), n_inputs, n_classes)


def _conv_bn(shape: Shape, n_classes: int) -> Classifier:
    body = nn.Sequential(nn.Conv2d(shape[0], 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return Classifier(body, 4 * (shape[1] - 2) * (shape[2] - 2), n_classes)
