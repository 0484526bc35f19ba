"""Data sets in folders of images: a folder for each class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shared.runtime.host_limits import available_bytes
from shared.training.data.picture_files import listed_pictures
from shared.training.data.pixels import DEEP, GREY, Pixels, head_of, scale_of
from shared.training.data.reading import Read, Reading
from shared.training.data.sources import DataMalformed
from shared.training.data.splits import drawn_tests
from shared.training.specs import DataSpec


def read_images(folder: Path, spec: DataSpec) -> Read:
    """Reads a folder of images by class: `train/<class>/` and `test/<class>/`, or `<class>/` alone.

    Classes are numbered in the order of their names. Images are grey if all are, else of three colours.

    Raises:
        DataMalformed: there are no images, or they have different sizes, or one is damaged, or the spec has to say how
            it is meant.
    """
    listing = listed_pictures(folder)
    paths = [path for found in listing.parts.values() for path, _ in found]
    x, values, notes = _pixels(paths, folder, spec)
    numbers = {label: number for number, label in enumerate(listing.classes)}
    y = np.array([numbers[label] for found in listing.parts.values() for _, label in found])
    test = np.arange(len(y)) >= len(listing.parts["train"]) if "train" in listing.parts else drawn_tests(y)
    arrays = {
        "train_x": x[~test],
        "train_y": y[~test],
        "test_x": x[test],
        "test_y": y[test],
        "n_classes": np.array(len(numbers)),
    }
    reading = Reading(classes=listing.classes, value_range=values, notes=(*listing.notes, *notes))
    return Read(arrays, reading)


def _pixels(
    paths: Sequence[Path], folder: Path, spec: DataSpec
) -> tuple[npt.NDArray[np.uint8], tuple[float, float] | None, tuple[str, ...]]:
    """Returns the pixels of images, (n, height, width) or (n, height, width, 3), and what was converted.

    The second value says which values of more than eight bits are black and white; None if there are none.
    """
    heads = [head_of(path, folder) for path in paths]
    sizes = {head.size for head in heads}
    if spec.size is None and len(sizes) > 1:
        cause = f"images of {len(sizes)} sizes (such as {sorted(sizes)[:2]})"
        raise DataMalformed(f"{folder.name} has {cause}; data.size resizes them")
    width, height = next(iter(sizes)) if spec.size is None else (spec.size, spec.size)
    grey = [head.mode in GREY | DEEP for head in heads]
    mode, channels = ("L", ()) if all(grey) else ("RGB", (3,))
    shape = (len(paths), height, width, *channels)
    _check_memory(shape, folder)
    deep = [path for path, head in zip(paths, heads, strict=True) if head.mode in DEEP]
    black, white = scale_of(deep, folder, spec.value_range)
    pixels = Pixels(folder, mode, spec.size, black, white, spec.background or "white")
    found = np.empty(shape, np.uint8)
    for image, path in zip(found, paths, strict=True):
        image[...] = pixels.of(path)
    return found, (black, white) if deep else None, (*_coloured(paths, grey, folder), *pixels.notes())


def _coloured(paths: Sequence[Path], grey: Sequence[bool], folder: Path) -> tuple[str, ...]:
    """Returns a note of grey images that are read in three colours, as others have colours or a palette."""
    if not any(grey) or all(grey):
        return ()
    other = paths[grey.index(False)].relative_to(folder)
    return (f"{sum(grey)} grey images are read in three colours, as {len(grey) - sum(grey)} others, such as {other}",)


def _check_memory(shape: tuple[int, ...], folder: Path) -> None:
    needed, there = math.prod(shape), available_bytes()
    if there is not None and needed > there:
        raise DataMalformed(f"{folder.name}: the images need {needed / 1e9:.1f} GB, {there / 1e9:.1f} GB are free")
