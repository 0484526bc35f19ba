"""Data sets that come as folders of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Pictures = dict[str, list[tuple[Path, int]]]
"""The files of a data set and their labels, `train` and `test`."""
SIDE = 64


@dataclass(frozen=True)
class Counts:
    """How many classes there are, and how many pictures of each."""

    classes: int
    train: int
    test: int


PUBLISHED = Counts(classes=200, train=500, test=50)
"""Of Tiny-ImageNet. A folder that holds less was not unpacked to its end."""


def tiny_imagenet(folder: Path) -> Pictures:
    """The pictures of Tiny-ImageNet as it is published: 200 classes, 500 each to train on, 50 each to validate.

    Labels are positions in `wnids.txt`, sorted. The labels of its test pictures are not public, so that the validation
    pictures are the test set here. No picture is opened.

    Args:
        folder: holds `wnids.txt`, `train/<class>/images/*.JPEG`, `val/images/*.JPEG` and `val/val_annotations.txt`.

    Raises:
        OSError: a folder cannot be listed.
        ValueError: something is missing or not as it should be; names the file, the line or the class.
    """
    names = sorted(_text(folder / "wnids.txt").split())
    if len(set(names)) != PUBLISHED.classes or len(names) != PUBLISHED.classes:
        raise ValueError(f"wnids.txt has {len(set(names))} classes, {PUBLISHED.classes} are published")
    for name in names:
        _check_plain(name, "wnids.txt")
    label_of = {name: label for label, name in enumerate(names)}
    found: Pictures = {"train": [], "test": _annotated(folder, label_of)}
    for name in names:
        found["train"] += [(path, label_of[name]) for path in sorted((folder / "train" / name).rglob("*.JPEG"))]
    for path, _ in found["train"] + found["test"]:
        if not path.is_file():  # a pipe, for one, would be waited for
            raise ValueError(f"{path.relative_to(folder)} is missing or no file")
    for part, wanted in (("train", PUBLISHED.train), ("test", PUBLISHED.test)):
        there = np.bincount([label for _, label in found[part]], minlength=len(names)).tolist()
        for name, n in zip(names, there, strict=True):
            if n != wanted:
                few = f"{n} pictures of {name} to {part}, {wanted} are published"
                raise ValueError(f"{few} (a set of another size comes as an .npz)")
    return found


def _annotated(folder: Path, label_of: dict[str, int]) -> list[tuple[Path, int]]:
    """The validation pictures and their labels: `FILE TAB CLASS TAB ...` a line."""
    found: dict[Path, int] = {}
    for number, line in enumerate(_text(folder / "val" / "val_annotations.txt").splitlines(), 1):
        file, *rest = line.split("\t")
        where = f"val_annotations.txt, line {number}"
        if not file or not rest:
            raise ValueError(f"{where}: not a file, a tab and its class")
        _check_plain(file, where)
        if rest[0] not in label_of:
            raise ValueError(f"{where}: {file} is of {rest[0]}, which wnids.txt does not have")
        path = folder / "val" / "images" / file
        if path in found:
            raise ValueError(f"{where}: {file} comes twice")
        found[path] = label_of[rest[0]]
    return list(found.items())


def _check_plain(name: str, where: str) -> None:
    """Refuse a name that leads to another folder, or that no file has."""
    if Path(name).name != name or name == ".." or not name.isprintable():
        raise ValueError(f"{where}: {name!r:.100} is no plain name")


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path.name} is missing or no file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is not text in UTF-8: {error}") from None


def read_pictures(paths: Sequence[Path], side: int = SIDE) -> npt.NDArray[np.uint8]:
    """Square JPEG pictures, (n, side, side, 3); grey ones become colour.

    Raises:
        ValueError: one is damaged, no JPEG or of another size; names the file.
    """
    from PIL import Image

    found = np.empty((len(paths), side, side, 3), dtype=np.uint8)
    for place, path in zip(found, paths, strict=True):
        try:
            with Image.open(path, formats=("JPEG",)) as picture:  # reads the head alone: a huge one is not unpacked
                if picture.size != (side, side):
                    raise ValueError(f"{picture.width}x{picture.height} pixels, not {side}x{side}")
                place[...] = np.asarray(picture.convert("RGB"))
        except Exception as error:  # damaged pictures fail in many ways, some by `SyntaxError`
            raise ValueError(f"{path.name} is no picture for this set: {error}") from error
    return found
