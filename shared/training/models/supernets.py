"""The over-parameterised networks of ES-AFL, table 1: every convolution is 3x3, followed by ReLU and batch-norm.

Without biases and batch-norm they have 5,622,336 weights and 34.61 M multiply-adds (`vgg_mnist` at 1x28x28), 23,232,192
and 187.90 M (`vgg_cifar10` at 3x32x32), and 9,944,064 and 19.73 M (`mobilenet_femnist` at 1x28x28, 62 classes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from shared.training.models.classifier import Classifier, Shape

Block = Callable[[int, int], list[nn.Module]]
"""(input channels, output channels) -> the modules of a convolution."""
POOL = "pool"
"""A 2x2 max-pool; an odd side is rounded up (28, 14, 7, 4), which gives the paper's number of linear inputs."""


def vgg_mnist(shape: Shape, n_classes: int, width: float = 1.0) -> Classifier:
    """Three convolutions of 64, 128 and 256 channels, each followed by a pool, and two layers of 1024 units."""
    return _supernet(shape, n_classes, width, (64, POOL, 128, POOL, 256, POOL), (1024, 1024), _convolution)


def vgg_cifar10(shape: Shape, n_classes: int, width: float = 1.0) -> Classifier:
    """Five convolutions of 64 to 384 channels, and layers of 4096 and 1024 units."""
    return _supernet(shape, n_classes, width, (64, POOL, 192, POOL, 384, 256, 256, POOL), (4096, 1024), _convolution)


def mobilenet_femnist(shape: Shape, n_classes: int, width: float = 1.0) -> Classifier:
    """A convolution and four depthwise separable ones, of 64 to 512 channels, and two layers of 1024 units."""
    return _supernet(shape, n_classes, width, (64, POOL, 128, POOL, 256, POOL, 512, 512), (1024, 1024), _separable)


def _supernet(
    shape: Shape, n_classes: int, share: float, plan: Sequence[int | str], dense: tuple[int, int], later: Block
) -> Classifier:
    """Builds the convolutions of a plan, then linear layers with ReLU, each with this share of its units.

    The first convolution is an ordinary one; `later` makes the modules of the others.
    """
    before, height, width = shape
    modules: list[nn.Module] = []
    for step in plan:
        if isinstance(step, str):
            modules.append(nn.MaxPool2d(2, ceil_mode=True))
            height, width = -(-height // 2), -(-width // 2)
        else:
            channels = _narrowed(step, share)
            modules += (later if modules else _convolution)(before, channels)
            before = channels
    modules.append(nn.Flatten())
    n_inputs = before * height * width
    for units in (_narrowed(n, share) for n in dense):
        modules += [nn.Linear(n_inputs, units), nn.ReLU()]
        n_inputs = units
    return Classifier(nn.Sequential(*modules), n_inputs, n_classes)


def _narrowed(n: int, share: float) -> int:
    return max(round(n * share), 1)


def _convolution(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(after)]


def _separable(before: int, after: int) -> list[nn.Module]:
    """Returns the modules of a depthwise and a pointwise convolution."""
    depthwise = nn.Conv2d(before, before, 3, padding=1, groups=before)
    pointwise = nn.Conv2d(before, after, 1)
    return [depthwise, nn.ReLU(), nn.BatchNorm2d(before), pointwise, nn.ReLU(), nn.BatchNorm2d(after)]
