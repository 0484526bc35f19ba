"""The networks that are used by several papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from shared.core.errors import BadInput
from shared.training.models.classifier import Classifier, Shape, initialise


def mlp(shape: Sequence[int], n_outputs: int) -> Classifier:
    """One hidden layer of 64 ReLU units, for numbers of any shape, such as the rows of a table: 784-64-10 on MNIST."""
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU()), 64, n_outputs)


def _two_convolutions(shape: Shape, widths: tuple[int, int]) -> tuple[list[nn.Module], int]:
    """Returns two 5x5 convolutions, each with ReLU and a 2x2 max-pool, and a flatten; and the number of features.

    The convolutions are unpadded if both sides have at least 28 pixels (28 -> 4x4, 32 -> 5x5). Smaller images (8, 16)
    would shrink to nothing; for them both convolutions are padded by 2 (8 -> 2x2, 16 -> 4x4).
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise BadInput(f"images of {height}x{width} are too small for two 2x2 pools", field="model.name")
    padding = 0 if min(height, width) >= 28 else 2
    modules: list[nn.Module] = []
    for before, after in zip((channels, widths[0]), widths, strict=True):
        modules += [nn.Conv2d(before, after, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = ((side - 4 + 2 * padding) // 2 for side in (height, width))
    return [*modules, nn.Flatten()], widths[1] * height * width


def cnn_mnist(shape: Shape, n_classes: int) -> Classifier:
    """FedAvg's CNN: 5x5 convolutions of 32 and 64 channels, 512 units.

    It is unpadded and has 582,026 parameters at 1x28x28 and 10 classes. McMahan et al. report 1,663,370, which is
    the number with a padding of 2.
    """
    modules, n_flat = _two_convolutions(shape, (32, 64))
    return Classifier(nn.Sequential(*modules, nn.Linear(n_flat, 512), nn.ReLU()), 512, n_classes)


def cnn_120_84(widths: tuple[int, int]) -> Callable[[Shape, int], Classifier]:
    """Returns a builder of two 5x5 convolutions, then 120 and 84 units.

    With 6 and 16 channels it is LeNet-5 for colour images (62,006 parameters).
    """

    def make(shape: Shape, n_classes: int) -> Classifier:
        modules, n_flat = _two_convolutions(shape, widths)
        dense = (nn.Linear(n_flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
        return Classifier(nn.Sequential(*modules, *dense), 84, n_classes)

    make.__doc__ = f"Two 5x5 convolutions of {widths[0]} and {widths[1]} channels, then 120 and 84 units."
    return make


def mobilenet_v1(shape: Shape, n_classes: int) -> Classifier:
    """MobileNet-V1 for small images: the paper's table 1 with a stem of stride 1 (32x32 is reduced to 2x2).

    It has 3,217,226 parameters at 3x32x32 and 10 classes. Images of 8x8 are reduced to 1x1, as in `resnet*`.
    """
    widths = [64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
    strides = [1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1]
    modules = _normalised(nn.Conv2d(shape[0], 32, 3, padding=1, bias=False), 32)
    before = 32
    for after, stride in zip(widths, strides, strict=True):
        depthwise = nn.Conv2d(before, before, 3, stride=stride, padding=1, groups=before, bias=False)
        modules += _normalised(depthwise, before)
        modules += _normalised(nn.Conv2d(before, after, 1, bias=False), after)
        before = after
    return Classifier(nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten()), before, n_classes)


def _normalised(convolution: nn.Conv2d, n_channels: int) -> list[nn.Module]:
    """Returns a convolution with batch-norm and ReLU, initialised as in the ResNets."""
    initialise(convolution)
    return [convolution, nn.BatchNorm2d(n_channels), nn.ReLU()]


def cnn_digits(shape: Shape, n_classes: int) -> Classifier:
    """FedBN's network for digits: three padded 5x5 convolutions of 64, 64 and 128 channels, 2048 and 512 units.

    Batch-norm follows each layer except the last, a 2x2 max-pool each of the first two convolutions. At 3x28x28 the
    first linear layer has 6272 inputs, and the network 14,219,210 parameters.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise BadInput(f"images of {height}x{width} are too small for two 2x2 pools", field="model.name")
    modules: list[nn.Module] = []
    for before, after in ((channels, 64), (64, 64), (64, 128)):
        modules += [nn.Conv2d(before, after, 5, padding=2), nn.BatchNorm2d(after), nn.ReLU()]
        modules += [nn.MaxPool2d(2)] if after < 128 else [nn.Flatten()]
    for inputs, units in ((128 * (height // 4) * (width // 4), 2048), (2048, 512)):
        modules += [nn.Linear(inputs, units), nn.BatchNorm1d(units), nn.ReLU()]
    return Classifier(nn.Sequential(*modules), 512, n_classes)
