"""`digit_domains`: several digit data sets combined into one, with images of one shape and a domain for each image.

The five sets `mnist`, `mnist_m`, `svhn`, `synth_digits` and `usps` show the same ten digits in different styles (the
benchmark of X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN. ICLR 2021, section 5.1). Images are resized to three
channels of `size` x `size` pixels by bilinear interpolation with anti-aliasing; a grey channel is repeated.

The split into training and test images does not depend on a run's seed, so that all runs are tested on the same images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from shared.core.errors import UnknownName
from shared.runtime.memory import check_images
from shared.training.data.dataset import Dataset, load, open_unpacked, unpack_once
from shared.training.data.sources import Arrays, DataUnavailable
from shared.training.specs import DataSpec

NAME = "digit_domains"
FIVE = ("mnist", "mnist_m", "svhn", "synth_digits", "usps")
N_CLASSES = 10
SIZE = 28
"""Default side of the images, in pixels."""
TRAIN_SHARE = 0.8
"""Share of each class's images that are training images."""
BLOCK = 4096
"""Number of images that are resized at a time."""

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


def names_of(spec: DataSpec) -> tuple[str, ...]:
    """Returns the digit data sets that a spec combines, in its order; none if its data set is another one."""
    return (spec.domains or FIVE) if spec.name == NAME else ()


def check_domains(spec: DataSpec) -> None:
    """Checks the names of the data sets that a spec combines.

    Raises:
        UnknownName: a name is wrong; the error has the field.
    """
    for name in names_of(spec):
        if name not in FIVE:
            raise UnknownName("domain", name, list(FIVE), field="data.domains")


def open_domains(spec: DataSpec, *, data_dir: Path | None, cache_dir: Path) -> Dataset:
    """Opens the combined data set of a spec, memory-mapped; the first time it is made and stored in the cache.

    Raises:
        DataUnavailable, DataMalformed: as for `load`, for each of the data sets.
        BadInput: there is too little memory to combine them.
    """
    names = names_of(spec)
    parts = [_part(name, names, data_dir, cache_dir) for name in names]
    size, split = spec.size or SIZE, spec.split or "whole"
    key = "|".join([f"{size} {split}", *(f"{part.name} {part.digest}" for part in parts)])
    folder = cache_dir / f"{NAME}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    unpack_once(folder, lambda: combine(parts, size, whole=split == "whole"), N_CLASSES)
    return open_unpacked(NAME, folder, N_CLASSES, names)


def _part(name: str, names: Sequence[str], data_dir: Path | None, cache_dir: Path) -> Dataset:
    """Opens one of the data sets; if it is unavailable, the error says how to leave it out of the spec."""
    try:
        return load(name, data_dir=data_dir, cache_dir=cache_dir)
    except DataUnavailable as error:
        others = ", ".join(other for other in names if other != name)
        instead = f"; or leave it out: data.domains=[{others}], and fewer clients in num_devices or num_edges"
        raise DataUnavailable(error.detail + (instead if others else ""), field="data.domains") from None


def combine(parts: Sequence[Dataset], size: int, *, whole: bool) -> Arrays:
    """Returns the images and labels of the data sets as one; an image's domain is the index of its data set.

    Raises:
        BadInput: there is too little memory for the images.
    """
    check_images(sum(len(part.train_y) + len(part.test_y) for part in parts), size)
    made: dict[str, list[npt.NDArray[np.generic]]] = {}
    for number, part in enumerate(parts):
        x, y = np.asarray(part.train_x), np.asarray(part.train_y)
        if whole:
            x = np.concatenate([resized(x, size), resized(part.test_x, size)])
            y = np.concatenate([y, part.test_y])
        train, rest = stratified(y, TRAIN_SHARE)
        pieces = (x[train], y[train]), (x[rest], y[rest]) if whole else (part.test_x, np.asarray(part.test_y))
        for name, (images, labels) in zip(("train", "test"), pieces, strict=True):
            made.setdefault(f"{name}_x", []).append(resized(images, size))
            made.setdefault(f"{name}_y", []).append(labels)
            made.setdefault(f"{name}_domain", []).append(np.full(len(labels), number, np.int64))
    return {key: np.concatenate(arrays) for key, arrays in made.items()}


def stratified(labels: Labels, share: float) -> tuple[Labels, Labels]:
    """Returns the indices of a seeded share of each class (rounded), and the other indices; both ascending."""
    rng = np.random.default_rng(0)
    of_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(N_CLASSES)]
    first = np.sort(np.concatenate([indices[: round(share * len(indices))] for indices in of_class]))
    return first, np.setdiff1d(np.arange(len(labels)), first)


def resized(images: Images, size: int) -> Images:
    """Returns images, uint8 (n, height, width[, channels]), resized to uint8 (n, size, size, 3)."""
    planes = images[..., None] if images.ndim == 3 else images
    if planes.shape[1:3] == (size, size):
        return np.ascontiguousarray(np.broadcast_to(planes, (*planes.shape[:3], 3)))
    made = np.empty((len(planes), size, size, 3), np.uint8)
    for begin in range(0, len(planes), BLOCK):
        block = torch.from_numpy(planes[begin : begin + BLOCK].transpose(0, 3, 1, 2).astype(np.float32))
        scaled = functional.interpolate(block, (size, size), mode="bilinear", antialias=True)
        made[begin : begin + BLOCK] = scaled.round_().clamp_(0, 255).numpy().transpose(0, 2, 3, 1)
    return made
