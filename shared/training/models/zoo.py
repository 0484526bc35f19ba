"""The models by name, and making them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from pydantic import Field
from torch import nn

from shared.core.errors import BadInput, UnknownName
from shared.core.randomness import lent
from shared.core.records import Record
from shared.training.models.base import Classifier, Shape
from shared.training.models.networks import cnn_120_84, cnn_digits, cnn_mnist, mlp, mobilenet_v1, resnet
from shared.training.models.supernets import mobilenet_femnist, vgg_cifar10, vgg_mnist


class ModelSpec(Record):
    """Which model; `projection` puts a projection head of so many outputs before its last layer.

    `width` is the share of the units of its hidden layers, for models of which there are several.
    """

    name: str = Field(default="mlp", pattern=r"^[a-z][a-z0-9_]{0,63}$")
    projection: int | None = Field(default=None, ge=1, le=65_536)
    width: float = Field(default=1.0, gt=0, le=4)

    def __str__(self) -> str:
        named = self.name if self.width == 1 else f"{self.name}, width {self.width:g}"
        return named if self.projection is None else f"{named}, projection {self.projection}"


OF_ANY_WIDTH = {"vgg_mnist": vgg_mnist, "vgg_cifar10": vgg_cifar10, "mobilenet_femnist": mobilenet_femnist}
"""Those of which there is a share of the units of every hidden layer as well."""
MODELS: dict[str, Callable[[Shape, int], Classifier]] = {
    "mlp": mlp,
    "cnn_mnist": cnn_mnist,
    "cnn_cifar10": cnn_mnist,
    "cnn_6_12": cnn_120_84((6, 12)),
    "cnn_6_16": cnn_120_84((6, 16)),
    "cnn_digits": cnn_digits,
    "resnet18": resnet(18),
    "resnet34": resnet(34),
    "resnet50": resnet(50),
    "mobilenet_v1": mobilenet_v1,
    **OF_ANY_WIDTH,
}
"""The models by name; `cnn_cifar10` is `cnn_mnist` under the name it has on 3x32x32 (878,538 parameters)."""


def check_name(name: str, width: float = 1.0) -> None:
    """Refuse a name that no model has, and a width that this model does not have.

    Raises:
        UnknownName: listing the names there are.
        BadInput: the model has one width.
    """
    if name not in MODELS:
        raise UnknownName("model", name, list(MODELS), field="model.name")
    if width != 1 and name not in OF_ANY_WIDTH:
        raise BadInput(f"{name} has one width; others have {', '.join(OF_ANY_WIDTH)}", field="model.width")


def build(
    name: str, input_shape: Shape, n_classes: int, seed: int, projection: int | None = None, width: float = 1.0
) -> Classifier:
    """Make a model with initial weights that depend on the arguments only; torch's generator is left alone.

    Args:
        name: one of `MODELS`.
        input_shape: (channels, height, width).
        n_classes: width of the head.
        seed: of the initial weights.
        projection: outputs of a projection head before the last layer; None = there is none.
        width: share of the units of hidden layers, of models that are `OF_ANY_WIDTH`.

    Raises:
        UnknownName: no model of that name.
        BadInput: the images are too small for the model, or it has one width.
    """
    check_name(name, width)
    with lent(seed):
        narrowed = partial(OF_ANY_WIDTH[name], width=width) if width != 1 else MODELS[name]
        made = narrowed(input_shape, n_classes)
        return made if projection is None else _projected(made, projection)


def _projected(model: Classifier, n_outputs: int) -> Classifier:
    """MOON's projection head between a model's features and a new last layer: two linear layers, ReLU between them.

    The hidden layer is as wide as the features. The encoder's weights are those of the model without it.
    """
    width = model.head.in_features
    projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_outputs))
    features = nn.Sequential(OrderedDict(encoder=model.features, projection=projection))
    return Classifier(features, n_outputs, model.head.out_features)


@lru_cache(maxsize=64)
def least_batch(
    name: str, input_shape: Shape, n_classes: int, projection: int | None = None, width: float = 1.0
) -> int:
    """Samples that a batch must have to be trained on: 1, or 2 where a batch-norm sees one value a channel of a sample.

    One value has no variance. Only shapes are computed, on torch's `meta` device; arguments as of `build`.

    Raises:
        UnknownName, BadInput: as `build` does.
    """
    seen: list[int] = []

    def look(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0][0, 0].numel())  # of (batch, channels, ...)

    with torch.device("meta"):
        made = build(name, input_shape, n_classes, 0, projection, width)
        for module in made.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.register_forward_pre_hook(look)
        made(torch.empty(2, *input_shape))
    return 2 if 1 in seen else 1
