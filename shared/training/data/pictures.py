"""Data sets in folders of images: a folder for each class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.runtime.memory import available_bytes
from shared.training.data.sources import Arrays, DataMalformed
from shared.training.data.splits import drawn_tests

PICTURES = frozenset({".png", ".jpg", ".jpeg"})
"""Endings of the images that are read from a folder."""


def read_images(folder: Path, size: int | None) -> Arrays:
    """Reads a folder of images by class: `train/<class>/` and `test/<class>/`, or `<class>/` alone.

    Classes are numbered in the order of their names. Images are grey if all are, else of three colours.

    Raises:
        DataMalformed: there are no images, or they have different sizes, or one is damaged.
    """
    parts = ("train", "test") if (folder / "train").is_dir() and (folder / "test").is_dir() else ("",)
    files = {part: _pictures(folder / part) for part in parts}
    classes = sorted({label for found in files.values() for _, label in found})
    paths = [path for found in files.values() for path, _ in found]
    if len(classes) < 2:
        raise DataMalformed(f"{folder.name} has images of {len(classes)} classes; each class is a folder of its images")
    x = _pixels(paths, size, folder)
    y = np.array([classes.index(label) for found in files.values() for _, label in found])
    test = drawn_tests(y) if parts == ("",) else np.arange(len(y)) >= len(files["train"])
    return {
        "train_x": x[~test],
        "train_y": y[~test],
        "test_x": x[test],
        "test_y": y[test],
        "n_classes": np.array(len(classes)),
    }


def _pictures(folder: Path) -> list[tuple[Path, str]]:
    """Returns the images of a folder with their classes, by name; other files and hidden folders are left out."""
    found = []
    for own in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        images = (path for path in sorted(own.iterdir()) if path.suffix.lower() in PICTURES and path.is_file())
        found += [(path, own.name) for path in images]
    return found


def _pixels(paths: Sequence[Path], size: int | None, folder: Path) -> npt.NDArray[np.uint8]:
    from PIL import Image

    modes: set[str] = set()
    sides: set[tuple[int, int]] = set()
    for path in paths:
        with _opened(path, folder) as picture:
            modes.add(picture.mode)
            sides.add(picture.size)
    if size is None and len(sides) > 1:
        cause = f"images of {len(sides)} sizes (such as {sorted(sides)[:2]})"
        raise DataMalformed(f"{folder.name} has {cause}; data.size resizes them")
    width, height = (size, size) if size is not None else next(iter(sides))
    mode, channels = ("L", ()) if modes <= {"L", "1"} else ("RGB", (3,))
    shape = (len(paths), height, width, *channels)
    needed, there = math.prod(shape), available_bytes()
    if there is not None and needed > there:
        raise DataMalformed(f"{folder.name}: the images need {needed / 1e9:.1f} GB, {there / 1e9:.1f} GB are free")
    found = np.empty(shape, np.uint8)
    for image, path in zip(found, paths, strict=True):
        with _opened(path, folder) as picture:
            try:
                plain = picture.convert(mode)
                image[...] = np.asarray(
                    plain if size is None else plain.resize((width, height), Image.Resampling.BILINEAR)
                )
            except Exception as error:  # damaged images raise many types, even `SyntaxError`
                raise DataMalformed(f"{path.relative_to(folder)} is damaged: {error}") from error
    return found


def _opened(path: Path, folder: Path) -> Any:
    """Opens an image; its header alone is read, so that a huge one is not decoded."""
    from PIL import Image

    try:
        return Image.open(path, formats=("PNG", "JPEG"))
    except Exception as error:  # as above
        raise DataMalformed(f"{path.relative_to(folder)} is not an image: {error}") from error
