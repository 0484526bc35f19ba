"""RandAugment: each image is changed by a few operations, drawn anew for it.

E. D. Cubuk, B. Zoph, J. Shlens, Q. V. Le: RandAugment: Practical Automated Data Augmentation with a Reduced Search
Space. NeurIPS 2020. The operations are torchvision's 14: identity, auto-contrast, equalise, rotate, solarise, colour,
posterise, contrast, brightness, sharpness, shear x and y, translate x and y; drawn uniformly and with replacement.

The distortion is one for all of them, from 0 to 10, the strongest: torchvision's magnitude of 11 bins (its default has
31, of which 10 is a third).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from shared.records import Record
from shared.training.draws import lent
from shared.training.vision import torchvision

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
