"""Layers are in the order in which a forward pass uses them, however a model registers them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from shared.training import models
from shared.training.description import Classes, Numbers, Sample, Tokens
from shared.training.models import MODELS, Design, Shape, built, layers, layers_of

IMAGES = Sample((3, 32, 32), images=True)
SERIES = Sample((2, 64))
TEXTS = Sample((16,), dtype="int64", vocabulary=32)


@pytest.mark.parametrize(
    "design",
    [
        *(Design(name, IMAGES, Classes(10)) for name in ("mlp", "cnn_6_16", "cnn_digits", "resnet18", "mobilenet_v1")),
        Design("cnn_6_16", IMAGES, Classes(10), projection=16),
        Design("vgg_mnist", Sample((1, 28, 28), images=True), Classes(10), width=0.1),
        Design("cnn_1d", SERIES, Classes(4)),
        Design("autoencoder", SERIES, Numbers((2, 64))),
        Design("char_lstm", TEXTS, Tokens(32, 16)),
    ],
    ids=lambda design: design.name,
)
def test_the_models_of_the_zoo_register_their_layers_in_that_order(design: Design) -> None:
    """So specs that name no layers keep their bits."""
    assert layers_of(design) == tuple(layers(built(design, 0)))


class HeadFirst(nn.Module):
    """Batch-norm and head are registered before the body; the other layers are odd in other ways."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(8, n_classes)
        self.norm = nn.BatchNorm1d(8)
        self.spare = nn.Linear(3, 3)
        self.body = nn.Linear(shape[0] * shape[1] * shape[2], 8)

    def forward(self, x: Tensor) -> Tensor:
        zeros = next(self.parameters()).new_zeros(())  # reads the dtype of the head
        found: Tensor = self.out(self.norm(self.body(x.flatten(1))).relu() + zeros)
        return found


class FunctionalHead(HeadFirst):
    """The head is never called."""

    def forward(self, x: Tensor) -> Tensor:
        like = torch.zeros_like(self.out.bias) if self.out.weight.dtype == x.dtype else 0
        hidden = self.norm(self.body(x.flatten(1))).relu()
        return functional.linear(hidden, self.out.weight, self.out.bias) + like


class OwnMatrix(nn.Module):
    """The head is a matrix of the model itself, whose tensors come before those of its layers."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(8, n_classes))
        self.body = nn.Linear(shape[0] * shape[1] * shape[2], 8)

    def forward(self, x: Tensor) -> Tensor:
        assert self.matrix.shape[0] == 8
        hidden: Tensor = self.body(x.flatten(1))
        return hidden.relu() @ self.matrix


ENCODER = [f"encoder.{name}" for name in ("self_attn", "self_attn.out_proj", "norm1", "linear1", "linear2", "norm2")]


class Attention(nn.Module):
    """The output projection of an attention belongs to it, and is never called."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(8, n_classes)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.cls = nn.Parameter(torch.zeros(1, 1, 8))
        self.embed = weight_norm(nn.Linear(shape[2], 8))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.flatten(1, 2))
        found: Tensor = self.out(self.encoder(torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1))[:, 0])
        return found


@pytest.mark.parametrize(
    ("build", "order"),
    [
        (HeadFirst, ["spare", "body", "out"]),
        (FunctionalHead, ["spare", "body", "out"]),
        (OwnMatrix, ["body", ""]),
        (Attention, ["embed.parametrizations.weight", "embed", "", *ENCODER, "out"]),
    ],
    ids=["registered first", "never called", "a tensor of the model", "attention"],
)
def test_the_forward_pass_orders_layers(
    build: Callable[[Shape, int], nn.Module], order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "odd", build)
    layers_of.cache_clear()
    found = layers_of(Design("odd", Sample((1, 8, 8), images=True), Classes(3)))
    layers_of.cache_clear()
    assert [layer.name for layer in found] == order
    if build is HeadFirst:  # a batch-norm is part of the layer before it in the forward pass
        assert found[1].parameters == ("body.weight", "body.bias", "norm.weight", "norm.bias")
        assert found[1].buffers == ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    state = models.read_state(build((1, 8, 8), 3))
    assert sorted(name for layer in found for name in (*layer.parameters, *layer.buffers)) == sorted(state)
