"""Image augmentation: RandAugment, crop and flip, and random views (other resolutions, crops, rotations, flips).

RandAugment applies a few randomly drawn operations to each image: E. D. Cubuk, B. Zoph, J. Shlens, Q. V. Le:
RandAugment: Practical Automated Data Augmentation with a Reduced Search Space. NeurIPS 2020. The operations are
torchvision's 14: identity, auto-contrast, equalise, rotate, solarise, colour, posterise, contrast, brightness,
sharpness, shear x and y, translate x and y; drawn uniformly and with replacement. All have the same magnitude, from 0
to 10 (strongest): torchvision's magnitude with 11 bins (its default has 31 bins, where 10 is a third of the strongest).

Crop and flip is the usual augmentation of CIFAR's images: each image gets a black border, is cut to its size at a
random place, and is mirrored with probability 1/2. Pixels are moved and never interpolated.

Views are drawn from the generator passed in and depend on nothing else. They resample bilinearly; pixels outside the
image are black. Their images are floats as `as_batch` returns them, (batch, channels, height, width).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from shared.core.randomness import seeded_default_generator
from shared.training.description import Normalisation
from shared.training.specs import STRONGEST, AugmentSpec
from shared.training.torchvision_compat import torchvision


def augmented(images: Tensor, spec: AugmentSpec, seed: int) -> Tensor:
    """Returns the images, each augmented as drawn for it.

    torchvision draws from torch's default generator, which is seeded here and restored afterwards.

    Args:
        images: uint8, (n, channels, height, width).
        spec: the augmentation, with number and magnitude of its operations.
        seed: seed of all draws.
    """
    if spec.name == "crop_flip":
        return _cropped_and_flipped(images, torch.Generator().manual_seed(seed))
    policy = _policy(spec.n_ops, spec.magnitude)
    with seeded_default_generator(seed):
        return torch.stack([policy(image) for image in images])


def augmented_apart(images: Tensor, spec: AugmentSpec, seeds: Iterable[int]) -> Tensor:
    """Returns the images, each augmented with its own seed, so that it does not depend on the other images."""
    alone = zip(torch.split(images, 1), seeds, strict=True)
    return torch.cat([augmented(image, spec, seed) for image, seed in alone])


def _cropped_and_flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    n, n_channels, height, width = images.shape
    high, wide = int(CROP * height), int(CROP * width)
    bordered = functional.pad(images, (wide, wide, high, high))
    rows = torch.randint(2 * high + 1, (n, 1), generator=generator) + torch.arange(height)
    columns = torch.randint(2 * wide + 1, (n, 1), generator=generator) + torch.arange(width)
    mirrored = torch.randint(2, (n, 1), generator=generator) == 1
    columns = torch.where(mirrored, columns.flip(1), columns)
    each, channels = torch.arange(n).view(n, 1, 1, 1), torch.arange(n_channels).view(1, -1, 1, 1)
    return bordered[each, channels, rows.view(n, 1, -1, 1), columns.view(n, 1, 1, -1)]


def as_pixels(x: Tensor) -> Tensor:
    """Returns float images as `as_batch` makes them without a normalisation converted back to uint8, exactly."""
    return x.mul(0.5).add_(0.5).mul_(255).round_().to(torch.uint8)


def as_floats(pixels: Tensor, normalisation: Normalisation | None = None) -> Tensor:
    """Returns uint8 images (n, channels, height, width) as the floats of `as_batch`."""
    if normalisation is None:
        return pixels.to(torch.float32).div_(255).sub_(0.5).div_(0.5)
    mean, std = normalisation.mean.to(pixels.device), normalisation.std.to(pixels.device)
    return pixels.to(torch.float32).div_(255).sub_(mean).div_(std)


@cache
def _policy(n_ops: int, magnitude: int) -> Any:
    bins = STRONGEST + 1
    return torchvision().transforms.RandAugment(num_ops=n_ops, magnitude=magnitude, num_magnitude_bins=bins)


View = Literal["resolution", "crop", "rotation", "flip"]

RATIOS = (1.0, 0.875, 0.75, 0.625)
"""Scales of the view `resolution`: 32, 28, 24 and 20 pixels for images of 32."""
CROP = 0.125
"""Upper bound on the shift of a crop in each direction, as a share of the side: 4 pixels of 32."""
DEGREES = 15.0
"""Upper bound on the angle of a rotation, in degrees, in either direction."""
BLACK = -1.0
"""Value of a black pixel in the float images of `as_batch`."""


def other_sizes(height: int, width: int) -> list[tuple[int, int]]:
    """Returns the sizes (height, width) that `resolution` draws from, the image's own size first."""
    return [(_scaled(height, ratio), _scaled(width, ratio)) for ratio in RATIOS]


def _scaled(side: int, ratio: float) -> int:
    return max(math.floor(side * ratio + 0.5), 1)


def resized(x: Tensor, size: tuple[int, int], *, align_corners: bool = False) -> Tensor:
    """Returns float images resized to another size (height, width).

    `align_corners` places the outermost pixels of both sizes on each other by their centres; otherwise by their edges.
    """
    if x.shape[-2:] == size:
        return x
    return functional.interpolate(x, size, mode="bilinear", align_corners=align_corners)


def view(x: Tensor, views: Sequence[View], generator: torch.Generator, *, align_corners: bool = False) -> Tensor:
    """Returns a random view of each image; `resolution` draws one size for the whole batch.

    Args:
        x: float images, (batch, channels, height, width); not changed.
        views: the transforms to apply; their order does not matter.
        generator: the only source of randomness.
        align_corners: how `resolution` resizes, see `resized`.
    """
    moved = _transformed(x, views, generator)
    if "resolution" not in views:
        return moved
    sizes = other_sizes(*x.shape[-2:])
    drawn = sizes[int(torch.randint(len(sizes), (), generator=generator))]
    return resized(moved, drawn, align_corners=align_corners)


def _transformed(x: Tensor, views: Sequence[View], generator: torch.Generator) -> Tensor:
    """Returns images rotated, shifted and mirrored, with one resampling for all three."""
    if not {"crop", "rotation", "flip"} & set(views):
        return x
    n, _, height, width = x.shape
    affine = torch.eye(3, dtype=torch.float64).repeat(n, 1, 1)[:, :2]  # view to image positions
    if "rotation" in views:
        angle = math.radians(DEGREES) * (2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1)
        cos, sin, aspect = angle.cos(), angle.sin(), height / width
        turned = torch.stack([cos, -sin * aspect, sin / aspect, cos], 1).reshape(n, 2, 2)
        affine[:, :, :2] = turned
    if "flip" in views:
        mirrored = torch.randint(2, (n,), generator=generator) == 1
        affine[mirrored, :, 0] *= -1
    if "crop" in views:
        for axis, side in enumerate((width, height)):
            most = int(CROP * side)
            pixels = torch.randint(-most, most + 1, (n,), generator=generator)
            affine[:, axis, 2] = 2 * pixels.double() / side  # image coordinates range from -1 to 1
    grid = functional.affine_grid(affine.to(x), list(x.shape), align_corners=False)
    return functional.grid_sample(x - BLACK, grid, align_corners=False) + BLACK
