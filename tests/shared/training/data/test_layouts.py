"""Which axis of samples holds their channels: moved, kept, or asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from shared.core.errors import BadInput
from shared.federation.plan import _sample
from shared.training.data.dataset import Dataset
from shared.training.data.sources import DataMalformed
from shared.training.description import Classes, Sample
from shared.training.models import build
from shared.training.specs import DataSpec
from tests.shared.training.data.test_files import opened

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (4, 8, 6, 3), dtype=np.uint8)
SERIES = RNG.random((4, 9, 2), dtype=np.float32)
FIRST = SERIES.transpose(0, 2, 1)
MASK = np.arange(9) < np.array([9, 5, 7, 9])[:, None]


def of_samples(folder: Path, x: Any, layout: str | None = None, mask: Any = None, **more: Any) -> Dataset:
    """Opens samples that are both training and test set."""
    masks = {} if mask is None else {"train_mask": mask, "test_mask": mask}
    y = np.arange(len(x)) % 2
    np.savez(folder / "mine.npz", train_x=x, train_y=y, test_x=x, test_y=y, **masks, **more)
    return opened(folder, file="mine.npz", layout=layout)


# ---- what models get


def test_images_of_bytes_have_channels_last_unless_they_can_only_have_them_first(tmp_path: Path) -> None:
    first = IMAGES.transpose(0, 3, 1, 2)
    for x, layout in ((IMAGES, None), (IMAGES, "channels_last"), (first, None), (first, "channels_first")):
        got = of_samples(tmp_path, x, layout)
        assert got.sample == Sample((3, 8, 6), images=True)
        assert got.train_x.tolist() == IMAGES.tolist()
        assert bool(got.reading.notes) == (x is first and layout is None)
    with pytest.raises(DataMalformed, match=r"train_x has shape \(4, 8, 6, 4\), expected"):
        of_samples(tmp_path, np.concatenate([IMAGES, IMAGES[..., :1]], -1))


def test_numbers_with_channels_last_are_moved(tmp_path: Path) -> None:
    floats = (IMAGES / 255).astype(np.float32)
    got = of_samples(tmp_path, floats, "channels_last")
    assert got.sample == Sample((3, 8, 6), layout="channels_first")
    assert got.encode(got.train_x).tolist() == floats.transpose(0, 3, 1, 2).tolist()
    kept = of_samples(tmp_path, floats.transpose(0, 3, 1, 2), "channels_first")
    assert (kept.train_x.tolist(), kept.sample, kept.digest) == (got.train_x.tolist(), got.sample, got.digest)
    assert of_samples(tmp_path, floats).sample == Sample((8, 6, 3))


@pytest.mark.parametrize(("x", "layout"), [(SERIES, "channels_last"), (FIRST, "channels_first")])
def test_a_mask_is_the_last_channel_of_either_layout(tmp_path: Path, x: Any, layout: str) -> None:
    got = of_samples(tmp_path, x, layout, MASK)
    assert got.sample == Sample((3, 9), layout="channels_first")
    np.testing.assert_array_equal(got.train_x[:, :2], FIRST * MASK[:, None])
    np.testing.assert_array_equal(got.train_x[:, 2], MASK)
    plain = of_samples(tmp_path, SERIES, None, MASK)
    assert plain.sample == Sample((9, 3), layout="channels_last")
    np.testing.assert_array_equal(plain.train_x, got.train_x.transpose(0, 2, 1))


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 9), (1, 9), ()])
def test_statistics_follow_their_layout(tmp_path: Path, mask: Any, shape: tuple[int, ...]) -> None:
    mean, std = RNG.random(shape), RNG.random(shape) + 0.5
    got = of_samples(tmp_path, FIRST, "channels_first", mask, mean=mean, std=std)
    whole = [value[:, None] if value.ndim == 1 else value for value in (mean, std)]
    x = FIRST if mask is None else FIRST * mask[:, None]
    np.testing.assert_allclose(got.encode(got.train_x)[:, :2].numpy(), (x - whole[0]) / whole[1], rtol=1e-5, atol=1e-6)
    turned = [value.T if value.ndim == 2 else value for value in (mean, std)]
    last = of_samples(tmp_path, SERIES, "channels_last", mask, mean=turned[0], std=turned[1])
    np.testing.assert_allclose(last.encode(last.train_x), got.encode(got.train_x), rtol=1e-6)


@pytest.mark.parametrize("x", [np.ones((4, 5)), np.ones((4, 5, 2), int)])
def test_a_layout_of_samples_without_channels_is_refused(tmp_path: Path, x: Any) -> None:
    with pytest.raises(DataMalformed, match="without channels"):
        of_samples(tmp_path, x, "channels_last")
    for spec in ({"name": "digits"}, {"file": "flowers"}, {"file": "a.csv", "target": "b"}):
        with pytest.raises(ValidationError, match="layout is for arrays"):
            DataSpec.model_validate({**spec, "layout": "channels_last"})


def test_large_numbers_that_are_not_normalised_are_named(tmp_path: Path) -> None:
    assert of_samples(tmp_path, SERIES * 99).reading.notes == ()
    (note,) = of_samples(tmp_path, np.array([[0.0, 255.0]] * 4)).reading.notes
    assert note == "train_x holds numbers from 0 to 255, not normalised (keys mean and std)"
    assert of_samples(tmp_path, SERIES * 999, mean=np.array(0.5), std=np.array(1.0)).reading.notes == ()


def test_the_plan_states_the_channels() -> None:
    assert _sample(Sample((32, 32, 3))) == "32 x 32 x 3 numbers, 32 channels (first)"
    assert _sample(Sample((48, 1), layout="channels_last")) == "48 x 1 numbers, 1 channel (last)"
    assert _sample(Sample((5,))) == "5 numbers"


# ---- models


@pytest.mark.parametrize(
    ("model", "shape"),
    [*((name, (32, 32, 3)) for name in ("cnn_cifar10", "resnet18", "torchvision.resnet18")), ("cnn_1d", (128, 9))],
)
def test_samples_that_look_as_if_channels_came_last_are_asked(model: str, shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        with pytest.raises(BadInput, match=r"may have their channels last: data.layout has to say"):
            build(model, Sample(shape), Classes(2), 0)
        for sample in (Sample(shape[::-1]), Sample(shape[::-1], layout="channels_first")):
            assert build(model, sample, Classes(2), 0)(sample.example(2).to("meta")).shape == (2, 2)
        for name, kept in (("cnn_cifar10", (16, 16, 5)), ("cnn_1d", (128, 9))):
            built = build(name, Sample(kept, layout="channels_first"), Classes(2), 0)
            assert built.features[0].in_channels == kept[0], "channels are where the layout says"


def test_a_masked_series_runs_over_time() -> None:
    """The model of (length, channels) gives what that of (channels, length) with the same weights does."""
    last = build("cnn_1d", Sample((48, 4), layout="channels_last"), Classes(2), 1)
    first = build("cnn_1d", Sample((4, 48), layout="channels_first"), Classes(2), 1)
    x = torch.randn(3, 48, 4)
    assert next(tuple(value.shape) for value in first.state_dict().values()) == (16, 4, 5)
    torch.testing.assert_close(last(x), first(x.transpose(1, 2)))


@pytest.mark.parametrize(
    ("sample", "hint"),
    [
        (Sample((28, 28), "int64", vocabulary=5), "save pixels as uint8, numbers as floats"),
        (Sample((28, 28)), r"grey images of floats have one channel: \(n, 1, height, width\)"),
    ],
)
def test_a_model_of_images_says_what_to_do_about_other_samples(sample: Sample, hint: str) -> None:
    with pytest.raises(BadInput, match=hint):
        build("cnn_mnist", sample, Classes(2), 0)
