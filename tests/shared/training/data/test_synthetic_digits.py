"""Synthetic digits are reproducible, have each digit equally often, and can be recognised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.ImageDraw import Draw

from shared.training.data.synthetic_digits import CONTRAST, FACES, FINE, SIDE, _font, _strokes, picture, synth_digits
from shared.training.evaluation import evaluate
from shared.training.loop import batches, train
from shared.training.models import build


def test_a_picture_depends_only_on_seed_and_number() -> None:
    many, few = synth_digits(seed=3, n_train=20, n_test=10), synth_digits(seed=3, n_train=10, n_test=0)
    assert np.array_equal(many["train_x"][:10], few["train_x"])
    assert not np.array_equal(synth_digits(seed=4, n_train=10, n_test=0)["train_x"], few["train_x"])
    assert many["train_x"].shape == (20, SIDE, SIDE, 3)
    assert many["train_x"].dtype == np.uint8
    assert np.bincount(many["train_y"]).tolist() == [2] * 10
    assert np.bincount(many["test_y"]).tolist() == [1] * 10


def test_every_font_draws_ten_different_digits() -> None:
    for face in FACES:
        drawn = set()
        for digit in range(10):
            layer = Image.new("L", (40, 40))
            Draw(layer).text((20, 20), str(digit), fill=255, font=_font(face, 30), anchor="mm")
            assert np.asarray(layer).sum() > 1000, (face, digit)
            drawn.add(layer.tobytes())
        assert len(drawn) == 10, face


def test_pictures_differ_in_colour_and_have_contrast() -> None:
    pictures = np.stack([picture(8, np.random.default_rng(n)) for n in range(60)]).astype(np.float64)
    means = pictures.mean(axis=(1, 2))  # (n, channels)
    assert (means.std(axis=0) > 30).all()
    luminance = pictures @ np.array([0.299, 0.587, 0.114])
    spread = np.quantile(luminance, 0.98, axis=(1, 2)) - np.quantile(luminance, 0.02, axis=(1, 2))
    assert np.quantile(spread, 0.1) > CONTRAST / 2


class NoNeighbours(np.random.Generator):
    """A generator with which a digit has no neighbours."""

    def random(self, *_: Any, **__: Any) -> Any:
        return 1.0


def test_digits_differ_in_position_size_and_rotation() -> None:
    """Spread of centre, length (pixels) and angle (degrees) of images of the digit 1 without neighbours."""
    found = []
    for n in range(150):
        ink = np.asarray(_strokes(1, NoNeighbours(np.random.PCG64(n)))[0], np.float64)
        rows, columns = np.mgrid[0 : len(ink), 0 : len(ink)]
        y, x = (float((ink * at).sum() / ink.sum()) for at in (rows, columns))
        across, down = columns - x, rows - y
        xx, yy, xy = ((ink * a * b).sum() / ink.sum() for a, b in ((across, across), (down, down), (across, down)))
        lean = np.degrees(0.5 * np.arctan2(2 * xy, yy - xx))
        found.append((x / FINE, y / FINE, np.sqrt(yy + xx) / FINE, lean))
    right, below, length, leaning = np.std(found, axis=0)
    assert right > 1.5  # 0.6 to 0.9 come from the fonts if no digit is moved
    assert below > 1.5
    assert length > 0.85  # 0.66 if all are drawn at one size
    assert leaning > 15  # 11 with slant and shear only


@pytest.mark.slow
def test_the_digit_can_be_learned_from_the_picture() -> None:
    """A small network trained on 1,000 images predicts other images far better than chance."""
    made = synth_digits(seed=1, n_train=1000, n_test=200)
    model, order = build("cnn_6_12", (3, SIDE, SIDE), 10, seed=0), torch.Generator().manual_seed(0)
    drawn = batches(made["train_x"], made["train_y"], range(1000), batch_size=20, generator=order, epochs=8)
    train(model, drawn, lr=0.03, momentum=0.9)
    found = evaluate(model, made["test_x"], made["test_y"], range(200))
    assert found.n_correct > 60
