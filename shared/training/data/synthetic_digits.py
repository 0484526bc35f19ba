"""`synth_digits`: generated images of printed digits.

They are made in the manner of SynNumbers (Y. Ganin, V. Lempitsky: Unsupervised Domain Adaptation by Backpropagation.
ICML 2015, section 4.1), whose files are not available here: digits in many fonts, sizes, positions, slants,
rotations, strokes and colours on varied backgrounds, with neighbouring digits cut off at the edges, blur and noise. The
fonts are those that matplotlib ships (DejaVu, STIX and Computer Modern), whose licences permit this use.

Image n depends only on the seed, on n, and on the versions of Pillow, which draws it, and of matplotlib, which has the
fonts; `constraints.txt` pins both.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

VERSION = 1
"""Version of this generator; it changes whenever the image of a given seed and number changes."""
SIDE = 32
"""Side of an image, in pixels."""
FINE = 2
"""Scale at which images are drawn before they are reduced to `SIDE`."""
N_TRAIN, N_TEST = 10_000, 2_000
"""Default numbers of images; each digit has the same number."""
FACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10"),
)
"""The fonts of matplotlib that have digits."""
CONTRAST = 70.0
"""Lower bound on the difference of luminance (0 to 255) between a digit and the mean of its background."""

Pixels = npt.NDArray[np.float64]


def synth_digits(seed: int = 0, n_train: int = N_TRAIN, n_test: int = N_TEST) -> dict[str, npt.NDArray[Any]]:
    """Returns training and test images, uint8 (n, 32, 32, 3), and their labels, int64 (n,).

    The labels cycle through the ten digits, so that a part of a multiple of ten images has each digit equally often.
    """
    labels = np.arange(n_train + n_test, dtype=np.int64) % 10
    images = np.stack([picture(int(label), np.random.default_rng([seed, n])) for n, label in enumerate(labels)])
    return {
        "train_x": images[:n_train],
        "train_y": labels[:n_train],
        "test_x": images[n_train:],
        "test_y": labels[n_train:],
    }


def version() -> str:
    """Returns the versions of the generator, Pillow and matplotlib, on which the images depend."""
    made_by = [f"{name}-{metadata.version(name)}" for name in ("pillow", "matplotlib")]
    return "-".join([f"v{VERSION}", *made_by])


def picture(digit: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Returns an image of a digit, uint8 (32, 32, 3)."""
    from PIL.Image import Resampling, fromarray
    from PIL.ImageFilter import GaussianBlur

    ground = _background(rng)
    ink, edge = _colours(float(_luminance(ground.reshape(-1, 3).mean(axis=0))), rng)
    fill, outline = _strokes(digit, rng)
    fine = fromarray(np.rint(ground).clip(0, 255).astype(np.uint8))
    for colour, mask in ((edge, outline), (ink, fill)):
        red, green, blue = colour.astype(np.uint8).tolist()
        fine.paste((red, green, blue), (0, 0), mask)
    fine = fine.filter(GaussianBlur(float(rng.uniform(0.0, 0.8)) * FINE))
    small = np.asarray(fine.resize((SIDE, SIDE), Resampling.BOX), np.float64)
    noisy = small + rng.normal(0.0, rng.uniform(0.0, 10.0), small.shape)
    return np.rint(noisy).clip(0, 255).astype(np.uint8)


def _strokes(digit: int, rng: np.random.Generator) -> tuple[Image, Image]:
    """Returns the masks of the ink, and of ink and outline, of a digit and the visible parts of its neighbours."""
    from PIL import Image as images
    from PIL.ImageDraw import Draw

    side = SIDE * FINE
    font = _font(FACES[rng.integers(len(FACES))], int(rng.uniform(0.75, 1.15) * side))
    bold, rim = int(rng.integers(0, 3)), int(rng.choice([0, 0, 1, 2]))
    turned, sheared = rng.uniform(-25, 25), rng.uniform(-0.25, 0.25)
    middle = side * (0.5 + rng.uniform(-0.1, 0.1, size=2))
    places = {0: str(digit)}
    for beside in (-1, 1):
        if rng.random() < 0.35:
            places[beside] = str(rng.integers(10))
    gap = (font.getlength("0") + bold + rim) * rng.uniform(1.1, 1.4)
    found = []
    for width in (bold, bold + rim):
        layer = images.new("L", (side, side))
        for beside, text in places.items():
            at = (middle[0] + beside * gap, middle[1])
            Draw(layer).text(at, text, fill=255, font=font, anchor="mm", stroke_width=width)
        slant = (1, sheared, -sheared * side / 2, 0, 1, 0)
        layer = layer.transform((side, side), images.Transform.AFFINE, slant, images.Resampling.BILINEAR)
        found.append(layer.rotate(turned, images.Resampling.BILINEAR))
    return found[0], found[1]


def _background(rng: np.random.Generator) -> Pixels:
    """Returns a plain, shaded, striped or cloudy background, (side, side, 3), 0 to 255."""
    side = SIDE * FINE
    first, second = rng.uniform(0, 255, (2, 3))
    second = first + (second - first) * rng.uniform(0.2, 0.6)  # otherwise no digit could be read on it
    angle = rng.uniform(0, 2 * np.pi)
    rows, columns = np.mgrid[0:side, 0:side] / side
    along = rows * np.sin(angle) + columns * np.cos(angle)
    kind = rng.integers(4)
    if kind == 0:
        blend = np.zeros((side, side))
    elif kind == 1:
        blend = (along - along.min()) / np.ptp(along)
    elif kind == 2:
        blend = 0.5 + 0.5 * np.sin(2 * np.pi * rng.uniform(1, 5) * along)
    else:
        blend = _clouds(side, rng)
    return np.asarray(first + (second - first) * blend[..., None], np.float64)


def _clouds(side: int, rng: np.random.Generator) -> Pixels:
    """Returns smooth random values, (side, side), 0 to 1."""
    from PIL.Image import Resampling, fromarray

    n = int(rng.integers(3, 9))
    coarse = fromarray(rng.integers(0, 256, (n, n), dtype=np.uint8))
    return np.asarray(coarse.resize((side, side), Resampling.BICUBIC), np.float64) / 255


def _colours(ground: float, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
    """Returns the colours of the ink and of its outline; the ink contrasts with the background's mean luminance."""
    while True:
        ink, edge = rng.uniform(0, 255, (2, 3))
        if abs(float(_luminance(ink)) - ground) >= CONTRAST:
            return ink, edge


def _luminance(colour: Pixels) -> Pixels:
    """Returns the luminance of colours (..., 3), with the weights of ITU-R BT.601."""
    return np.asarray(colour @ np.array([0.299, 0.587, 0.114]), np.float64)


@cache
def _font(face: str, size: int) -> FreeTypeFont:
    from PIL.ImageFont import Layout, truetype

    # Only matplotlib's font files are needed; no tier imports matplotlib itself.
    path = metadata.distribution("matplotlib").locate_file(f"matplotlib/mpl-data/fonts/ttf/{face}.ttf")
    return truetype(str(path), size, layout_engine=Layout.BASIC)
