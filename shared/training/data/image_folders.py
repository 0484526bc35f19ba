"""Data sets that are published as folders of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Pictures = dict[str, list[tuple[Path, int]]]
"""Files and labels of a data set's images, by part: `train` and `test`."""
SIDE = 64
"""Side of the images of Tiny-ImageNet, in pixels."""


@dataclass(frozen=True)
class Counts:
    """Number of classes of a data set, and of training and test images of each class."""

    classes: int
    train: int
    test: int


PUBLISHED = Counts(classes=200, train=500, test=50)
"""Counts of Tiny-ImageNet as published. A folder with fewer images was not completely unpacked."""


def tiny_imagenet(folder: Path) -> Pictures:
    """Returns the images of Tiny-ImageNet as published: 200 classes with 500 training and 50 validation images each.

    Labels are positions in the sorted lines of `wnids.txt`. The labels of the published test images are not public; the
    validation images serve as the test set. No image is opened.

    Args:
        folder: holds `wnids.txt`, `train/<class>/images/*.JPEG`, `val/images/*.JPEG` and `val/val_annotations.txt`.

    Raises:
        OSError: a folder cannot be listed.
        ValueError: something is missing or malformed; the message names the file, the line or the class.
    """
    names = sorted(_text(folder / "wnids.txt").split())
    if len(set(names)) != PUBLISHED.classes or len(names) != PUBLISHED.classes:
        raise ValueError(f"wnids.txt has {len(set(names))} classes, expected {PUBLISHED.classes}")
    for name in names:
        _check_plain(name, "wnids.txt")
    label_of = {name: label for label, name in enumerate(names)}
    found: Pictures = {"train": [], "test": _annotated(folder, label_of)}
    for name in names:
        found["train"] += [(path, label_of[name]) for path in sorted((folder / "train" / name).rglob("*.JPEG"))]
    for path, _ in found["train"] + found["test"]:
        if not path.is_file():  # reading a pipe would block
            raise ValueError(f"{path.relative_to(folder)} is missing or not a file")
    for part, wanted in (("train", PUBLISHED.train), ("test", PUBLISHED.test)):
        counts = np.bincount([label for _, label in found[part]], minlength=len(names)).tolist()
        for name, n in zip(names, counts, strict=True):
            if n != wanted:
                counted = f"class {name} has {n} {part} images, expected {wanted}"
                raise ValueError(f"{counted} (provide a data set of another size as an .npz)")
    return found


def _annotated(folder: Path, label_of: dict[str, int]) -> list[tuple[Path, int]]:
    """Returns the validation images and their labels, read from lines of the form `FILE TAB CLASS TAB ...`."""
    found: dict[Path, int] = {}
    for number, line in enumerate(_text(folder / "val" / "val_annotations.txt").splitlines(), 1):
        file, *rest = line.split("\t")
        where = f"val_annotations.txt, line {number}"
        if not file or not rest:
            raise ValueError(f"{where}: expected a file name, a tab and a class")
        _check_plain(file, where)
        if rest[0] not in label_of:
            raise ValueError(f"{where}: {file} has class {rest[0]}, which is not in wnids.txt")
        path = folder / "val" / "images" / file
        if path in found:
            raise ValueError(f"{where}: {file} is listed twice")
        found[path] = label_of[rest[0]]
    return list(found.items())


def _check_plain(name: str, where: str) -> None:
    """Refuses a name that leads to another folder or has unprintable characters."""
    if Path(name).name != name or name == ".." or not name.isprintable():
        raise ValueError(f"{where}: {name!r:.100} is not a plain name")


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path.name} is missing or not a file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not text in UTF-8: {error}") from None


def read_pictures(paths: Sequence[Path], side: int = SIDE) -> npt.NDArray[np.uint8]:
    """Reads square JPEG images, uint8 (n, side, side, 3); grey images are converted to colour.

    Raises:
        ValueError: an image is damaged, not a JPEG or of another size; the message names the file.
    """
    from PIL import Image

    found = np.empty((len(paths), side, side, 3), dtype=np.uint8)
    for image, path in zip(found, paths, strict=True):
        try:
            with Image.open(path, formats=("JPEG",)) as picture:  # reads the header only: a huge image is not decoded
                if picture.size != (side, side):
                    raise ValueError(f"{picture.width}x{picture.height} pixels, not {side}x{side}")
                image[...] = np.asarray(picture.convert("RGB"))
        except Exception as error:  # damaged images raise many types, even `SyntaxError`
            raise ValueError(f"{path.name} is not an image of this data set: {error}") from error
    return found
