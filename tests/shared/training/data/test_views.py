"""Views equal straightforward implementations of each transform, and are drawn from the generator only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from shared.training.data.augmentation import BLACK, DEGREES, View, other_sizes, resized, view

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def images(n: int, height: int, width: int) -> Tensor:
    return torch.rand(n, 2, height, width, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 2 - 1


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(old: int, new: int, *, align_corners: bool = False) -> Array:
    """Returns bilinear weights, (new, old): corner pixels are aligned by their centres, or by their edges, beyond whose
    centres edge values extend."""
    found = np.zeros((new, old))
    for pixel in range(new):
        at = pixel * (old - 1) / (new - 1) if align_corners else (pixel + 0.5) * old / new - 0.5
        at = min(max(at, 0.0), old - 1.0)
        below = min(int(at), old - 2)
        found[pixel, below], found[pixel, below + 1] = below + 1 - at, at - below
    return found


def test_sizes_are_those_of_the_paper_at_32_and_in_proportion_elsewhere() -> None:
    assert other_sizes(32, 32) == [(32, 32), (28, 28), (24, 24), (20, 20)]
    assert other_sizes(28, 64) == [(28, 64), (25, 56), (21, 48), (18, 40)]
    assert other_sizes(1, 1) == [(1, 1)] * 4


@pytest.mark.parametrize("size", [(6, 5), (8, 10), (16, 20)])
@pytest.mark.parametrize("align_corners", [False, True])
def test_resolution_is_bilinear(align_corners: bool, size: tuple[int, int]) -> None:
    x = images(2, 8, 10)
    across = [weights(old, new, align_corners=align_corners) for old, new in zip((8, 10), size, strict=True)]
    wanted = np.einsum("ih,bchw,jw->bcij", across[0], x.numpy(), across[1])
    assert np.allclose(resized(x, size, align_corners=align_corners).numpy(), wanted, atol=1e-12)


def test_one_resolution_is_drawn_uniformly_for_the_whole_batch() -> None:
    x, generator = images(3, 32, 32), seeded(0)
    sides = [view(x, ["resolution"], generator).shape[-1] for _ in range(400)]
    counts = [sides.count(side) for side in (32, 28, 24, 20)]
    assert sum(counts) == 400
    assert min(counts) > 70


def test_a_crop_is_taken_from_the_image_padded_with_black_by_an_eighth() -> None:
    x = images(300, 16, 24)
    windows = functional.pad(x, (3, 3, 2, 2), value=BLACK).unfold(2, 16, 1).unfold(3, 24, 1)  # by its top left corner
    seen = view(x, ["crop"], seeded(0))
    same = (windows - seen[:, :, None, None]).abs().amax((1, 4, 5)) < 1e-9
    assert same.sum((1, 2)).tolist() == [1] * 300
    assert same.any(0).shape == (5, 7)
    assert same.any(0).all()


def test_about_half_of_the_images_are_mirrored() -> None:
    x = images(400, 4, 6)
    seen = view(x, ["flip"], seeded(1))
    mirrored, same = (((seen - each).abs().amax((1, 2, 3)) < 1e-9) for each in (x.flip(-1), x))
    assert (mirrored != same).all()
    assert 160 < mirrored.sum() < 240


def test_a_rotation_turns_about_the_centre_and_keeps_shapes() -> None:
    """Compared with scipy's rotation, for images that are not square."""
    x = images(20, 12, 20)
    seen = view(x, ["rotation"], seeded(3))
    degrees = (DEGREES * (2 * torch.rand(20, generator=seeded(3), dtype=torch.float64) - 1)).tolist()
    for image, found, angle in zip(x.numpy(), seen.numpy(), degrees, strict=True):
        turned = ndimage.rotate(
            image, angle, axes=(2, 1), reshape=False, order=1, mode="grid-constant", cval=BLACK, prefilter=False
        )
        assert np.allclose(found, turned, atol=1e-9)
    assert max(map(abs, degrees)) <= DEGREES
    assert not torch.allclose(seen, x)


@pytest.mark.parametrize("views", [["resolution"], ["crop", "rotation", "flip", "resolution"]])
def test_the_generator_alone_determines_views_and_images_stay_unchanged(views: list[View]) -> None:
    x = images(3, 16, 16).float()
    before, state = x.clone(), torch.default_generator.get_state()
    one, again, other = (view(x, views, seeded(seed)) for seed in (7, 7, 9))
    assert torch.equal(one, again)
    assert one.dtype == torch.float32
    assert one.shape != other.shape or not torch.equal(one, other)
    assert torch.equal(x, before)
    assert view(x, [], seeded(0)) is x, "without views"
    assert torch.equal(torch.default_generator.get_state(), state)
