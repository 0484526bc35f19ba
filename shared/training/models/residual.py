"""Residual networks (He et al., CVPR 2016), for small images.

Tensor names, initial values for a seed, and results are those of torchvision's ResNets, bit for bit. Importing
torchvision for them took a second and 80 MB in every process of a run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shared.training.models.classifier import Classifier, Shape, initialise

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
"""By depth, the number of blocks in each of the four stages."""
_BOTTLENECK = 50
"""From this depth on, blocks have three convolutions, of which the last widens by 4."""


class Block(nn.Module):
    """Convolutions with batch-norm, added to the block's input or, where the shape changes, to its projection.

    Args:
        before: channels of the input.
        convolutions: the (channels, kernel size, stride) of each.
    """

    def __init__(self, before: int, convolutions: list[tuple[int, int, int]]) -> None:
        super().__init__()
        after, stride = convolutions[-1][0], max(stride for _, _, stride in convolutions)
        projection = None
        if stride > 1 or before != after:
            projection = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.parts: list[tuple[str, str]] = []
        for number, (channels, kernel, step) in enumerate(convolutions, 1):
            names = f"conv{number}", f"bn{number}"
            self.parts.append(names)
            self.add_module(names[0], nn.Conv2d(before, channels, kernel, step, padding=kernel // 2, bias=False))
            self.add_module(names[1], nn.BatchNorm2d(channels))
            before = channels
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features after the block."""
        y = x
        for convolution, norm in self.parts:
            y = self.get_submodule(norm)(self.get_submodule(convolution)(y))
            if norm != self.parts[-1][1]:
                y = self.relu(y)
        y += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(y)
        return result


class ResNet(nn.Module):
    """The network for large images, without its last layer: a stem, four stages of blocks, a mean over the image."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.n_features = 64
        for number, n_blocks in enumerate(_BLOCKS[depth]):
            blocks = [self._block(depth, 64 * 2**number, 1 if index or not number else 2) for index in range(n_blocks)]
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def _block(self, depth: int, width: int, stride: int) -> Block:
        if depth < _BOTTLENECK:
            convolutions = [(width, 3, stride), (width, 3, 1)]
        else:
            convolutions = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
        before, self.n_features = self.n_features, convolutions[-1][0]
        return Block(before, convolutions)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features of images, [batch, n_features]."""
        x = self.relu(self.bn1(self.conv1(x)))
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return torch.flatten(self.avgpool(x), 1)


def resnet(depth: int) -> Callable[[Shape, int], Classifier]:
    """Returns a builder of the ResNet of a depth for small images, with a 3x3 stem of stride 1 and no max-pool.

    Images of 8x8 are reduced to 1x1, where batch-norm cannot train on a batch of one sample.
    """

    def make(shape: Shape, n_classes: int) -> Classifier:
        body = ResNet(depth)
        nn.Linear(body.n_features, 1000)  # draws what the layer for ImageNet would have drawn
        for module in body.modules():
            if isinstance(module, nn.Conv2d):
                initialise(module)
        body.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
        initialise(body.conv1)
        return Classifier(body, body.n_features, n_classes)

    make.__doc__ = f"ResNet-{depth} for small images, with a 3x3 stem of stride 1 and no max-pool."
    return make
