"""The models by name, and building them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from pydantic import Field
from torch import nn

from shared.core.errors import BadInput, UnknownName
from shared.core.randomness import seeded_default_generator
from shared.core.records import Record
from shared.training.models.classifier import Classifier, Shape
from shared.training.models.networks import cnn_120_84, cnn_digits, cnn_mnist, mlp, mobilenet_v1
from shared.training.models.residual import resnet
from shared.training.models.supernets import mobilenet_femnist, vgg_cifar10, vgg_mnist


class ModelSpec(Record):
    """The model of a run.

    Attributes:
        name: name of the model, see `MODELS`.
        projection: number of outputs of a projection head before the last layer; None means no projection head.
        width: share of the units of the hidden layers, for the models in `OF_ANY_WIDTH`.
    """

    name: str = Field(default="mlp", pattern=r"^[a-z][a-z0-9_]{0,63}$")
    projection: int | None = Field(default=None, ge=1, le=65_536)
    width: float = Field(default=1.0, gt=0, le=4)

    def __str__(self) -> str:
        named = self.name if self.width == 1 else f"{self.name}, width {self.width:g}"
        return named if self.projection is None else f"{named}, projection {self.projection}"


OF_ANY_WIDTH = {"vgg_mnist": vgg_mnist, "vgg_cifar10": vgg_cifar10, "mobilenet_femnist": mobilenet_femnist}
"""The models that can be built with a share of the units of every hidden layer."""
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
    """Checks a model's name and width.

    Raises:
        UnknownName: no model has that name; the message lists the known names.
        BadInput: the model cannot be built with another width.
    """
    if name not in MODELS:
        raise UnknownName("model", name, list(MODELS), field="model.name")
    if width != 1 and name not in OF_ANY_WIDTH:
        raise BadInput(f"{name} has width 1 only; width goes with {', '.join(OF_ANY_WIDTH)}", field="model.width")


def build(
    name: str, input_shape: Shape, n_classes: int, seed: int, projection: int | None = None, width: float = 1.0
) -> Classifier:
    """Builds a model whose initial weights depend only on the arguments; the state of torch's generator is restored.

    Args:
        name: one of `MODELS`.
        input_shape: (channels, height, width).
        n_classes: number of outputs of the head.
        seed: seed of the initial weights.
        projection: number of outputs of a projection head before the last layer; None means no projection head.
        width: share of the units of hidden layers, for the models in `OF_ANY_WIDTH`.

    Raises:
        UnknownName: no model has that name.
        BadInput: the images are too small for the model, or it cannot be built with another width.
    """
    check_name(name, width)
    with seeded_default_generator(seed):
        narrowed = partial(OF_ANY_WIDTH[name], width=width) if width != 1 else MODELS[name]
        made = narrowed(input_shape, n_classes)
        return made if projection is None else _projected(made, projection)


def _projected(model: Classifier, n_outputs: int) -> Classifier:
    """Inserts MOON's projection head, two linear layers with a ReLU, between a model's features and a new last layer.

    Its hidden layer is as wide as the features. The encoder has the weights of the model without a projection head.
    """
    width = model.head.in_features
    projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_outputs))
    features = nn.Sequential(OrderedDict(encoder=model.features, projection=projection))
    return Classifier(features, n_outputs, model.head.out_features)


def build_shapes(
    name: str, input_shape: Shape, n_classes: int, projection: int | None = None, width: float = 1.0
) -> Classifier:
    """Builds a model on torch's `meta` device, where tensors have shapes but no values; otherwise as `build`."""
    with torch.device("meta"):
        return build(name, input_shape, n_classes, 0, projection, width)


@lru_cache(maxsize=64)
def least_batch(
    name: str, input_shape: Shape, n_classes: int, projection: int | None = None, width: float = 1.0
) -> int:
    """Returns the least number of samples in a training batch.

    It is 2 if a batch-norm has one value per channel and sample, since a single value has no variance, otherwise 1. The
    arguments are those of `build`.

    Raises:
        UnknownName, BadInput: as for `build`.
    """
    made = build(name, input_shape, n_classes, 0, projection, width)
    seen: list[int] = []

    def look(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0][0, 0].numel())  # of (batch, channels, ...)

    norms = [module for module in made.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
    for module in norms:
        module.register_forward_pre_hook(look)
    if norms:
        with seeded_default_generator(0), torch.no_grad():  # dropout draws from the default generator
            made(torch.zeros(2, *input_shape))
    return 2 if 1 in seen else 1
