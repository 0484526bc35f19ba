"""RandAugment: each image is changed by a few operations, drawn anew for it.

E. D. Cubuk, B. Zoph, J. Shlens, Q. V. Le: RandAugment: Practical Automated Data Augmentation with a Reduced Search
Space. NeurIPS 2020. The operations are torchvision's 14: identity, auto-contrast, equalise, rotate, solarise, colour,
posterise, contrast, brightness, sharpness, shear x and y, translate x and y; drawn uniformly and with replacement.

The distortion is one for all of them, from 0 to 10, the strongest: torchvision's magnitude of 11 bins (its default has
31, of which 10 is a third).

Random views of a batch of images: other resolutions, crops, rotations, flips.

Drawn with the generator handed in, so that they depend on nothing else. All of them resample bilinearly; what lies
outside an image is black. Images are floats as `as_batch` makes them, (batch, channels, height, width).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shared.core.randomness import lent
from shared.core.records import Record
from shared.training.torchvision_compat import torchvision

STRONGEST = 10


class AugmentSpec(Record):
    """How training images are augmented.

    Attributes:
        n_ops: operations on an image, one after another.
        magnitude: their distortion, from 0 to 10.
        when: `load`: each time that an image is trained on; `once`: one augmented copy of a client's images stands in
            for them, the same in all rounds.
    """

    name: Literal["randaugment"] = "randaugment"
    n_ops: Annotated[int, Field(ge=1, le=10)] = 2
    magnitude: Annotated[int, Field(ge=0, le=STRONGEST)] = STRONGEST
    when: Literal["load", "once"] = "load"


def augmented(images: Tensor, spec: AugmentSpec, seed: int) -> Tensor:
    """Each image changed by a draw of its own.

    torchvision draws from torch's default generator, which is given the seed and then left as it was.

    Args:
        images: uint8, (n, channels, height, width).
        spec: how.
        seed: of all draws.
    """
    policy = _policy(spec.n_ops, spec.magnitude)
    with lent(seed):
        return torch.stack([policy(image) for image in images])


def augmented_apart(images: Tensor, spec: AugmentSpec, seeds: Iterable[int]) -> Tensor:
    """The same with a seed for each image, whatever others there are."""
    alone = zip(torch.split(images, 1), seeds, strict=True)
    return torch.cat([augmented(image, spec, seed) for image, seed in alone])


def as_pixels(x: Tensor) -> Tensor:
    """Images as a model takes them by default, back as they were: uint8, exactly."""
    return x.mul(0.5).add_(0.5).mul_(255).round_().to(torch.uint8)


def as_floats(pixels: Tensor) -> Tensor:
    """uint8 images (n, channels, height, width) as `as_batch` gives them: `(x / 255 - 0.5) / 0.5`."""
    return pixels.to(torch.float32).div_(255).sub_(0.5).div_(0.5)


@cache
def _policy(n_ops: int, magnitude: int) -> Any:
    bins = STRONGEST + 1
    return torchvision().transforms.RandAugment(num_ops=n_ops, magnitude=magnitude, num_magnitude_bins=bins)


View = Literal["resolution", "crop", "rotation", "flip"]

RATIOS = (1.0, 0.875, 0.75, 0.625)
"""Of the resolution: 32, 28, 24, 20 pixels of 32."""
CROP = 0.125
"""A crop is moved by up to so much of the side in each direction: 4 pixels of 32, as by padding and cropping."""
DEGREES = 15.0
"""A rotation is by up to so many, to either side."""
BLACK = -1.0
"""As `as_batch` gives it."""


def other_sizes(height: int, width: int) -> list[tuple[int, int]]:
    """The sizes that `resolution` draws from, the image's own first."""
    return [(_scaled(height, ratio), _scaled(width, ratio)) for ratio in RATIOS]


def _scaled(side: int, ratio: float) -> int:
    return max(math.floor(side * ratio + 0.5), 1)


def resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Images at another size."""
    if x.shape[-2:] == size:
        return x
    return functional.interpolate(x, size, mode="bilinear", align_corners=False)


def view(x: Tensor, views: Sequence[View], generator: torch.Generator) -> Tensor:
    """A random view of each image; the resolution is one for the whole batch and may change the images' size.

    Args:
        x: float images; not changed.
        views: which transforms, in any order.
        generator: the only source of randomness.
    """
    moved = _moved(x, views, generator)
    if "resolution" not in views:
        return moved
    sizes = other_sizes(*x.shape[-2:])
    return resized(moved, sizes[int(torch.randint(len(sizes), (), generator=generator))])


def _moved(x: Tensor, views: Sequence[View], generator: torch.Generator) -> Tensor:
    """Rotated, shifted, mirrored: one resampling for all three."""
    if not {"crop", "rotation", "flip"} & set(views):
        return x
    n, _, height, width = x.shape
    where = torch.eye(3, dtype=torch.float64).repeat(n, 1, 1)[:, :2]  # from places in the view to places in the image
    if "rotation" in views:
        angle = math.radians(DEGREES) * (2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1)
        cos, sin, aspect = angle.cos(), angle.sin(), height / width
        turned = torch.stack([cos, -sin * aspect, sin / aspect, cos], 1).reshape(n, 2, 2)
        where[:, :, :2] = turned
    if "flip" in views:
        mirrored = torch.randint(2, (n,), generator=generator) == 1
        where[mirrored, :, 0] *= -1
    if "crop" in views:
        for axis, side in enumerate((width, height)):
            most = int(CROP * side)
            pixels = torch.randint(-most, most + 1, (n,), generator=generator)
            where[:, axis, 2] = 2 * pixels.double() / side  # an image reaches from -1 to 1
    grid = functional.affine_grid(where.to(x), list(x.shape), align_corners=False)
    return functional.grid_sample(x - BLACK, grid, align_corners=False) + BLACK
