"""Data sets that come as folders of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TINY_IMAGENET_SIDE = 64


def tiny_imagenet(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Tiny-ImageNet as it is published: 200 classes of 64x64 pictures, 500 each to train on, 50 to validate.

    Labels are positions in `wnids.txt`, sorted. The labels of its test pictures are not public, so that the validation
    pictures are the test set here. Grey pictures become colour.

    Args:
        folder: holds `wnids.txt`, `train/<class>/images/*.JPEG`, `val/images/*.JPEG` and `val/val_annotations.txt`.

    Raises:
        OSError: a file is missing or no picture.
        ValueError: a picture or an annotation is not as it should be; names the file.
    """
    names = sorted((folder / "wnids.txt").read_text(encoding="utf-8").split())
    label_of = {name: label for label, name in enumerate(names)}
    train = [(path, label_of[name]) for name in names for path in sorted((folder / "train" / name).rglob("*.JPEG"))]
    test = []
    for line in (folder / "val" / "val_annotations.txt").read_text(encoding="utf-8").splitlines():
        file, name, *_ = line.split("\t")
        if name not in label_of:
            raise ValueError(f"val_annotations.txt: {file} is of {name}, which wnids.txt does not have")
        test.append((folder / "val" / "images" / file, label_of[name]))
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part, pictures in (("train", train), ("test", test)):
        arrays[f"{part}_x"] = _pictures([path for path, _ in pictures], TINY_IMAGENET_SIDE)
        arrays[f"{part}_y"] = np.array([label for _, label in pictures], dtype=np.int64)
    return arrays


def _pictures(paths: list[Path], side: int) -> npt.NDArray[np.uint8]:
    """Square colour pictures, (n, side, side, 3)."""
    from PIL import Image

    found = np.empty((len(paths), side, side, 3), dtype=np.uint8)
    for place, path in zip(found, paths, strict=True):
        with Image.open(path) as picture:
            if picture.size != (side, side):
                raise ValueError(f"{path.name} has {picture.width}x{picture.height} pixels, not {side}x{side}")
            place[...] = np.asarray(picture.convert("RGB"))
    return found
