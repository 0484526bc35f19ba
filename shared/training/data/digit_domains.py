"""`digit_domains`: several sets of digits as one, their images brought to one shape, each knowing where it is from.

Five sets show the same ten digits in the same proportions and look different: `mnist`, `mnist_m`, `svhn`,
`synth_digits`, `usps` (the benchmark of X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN. ICLR 2021, section 5.1).
Images become three channels of `size` pixels a side, grey repeated, by bilinear interpolation with anti-aliasing.

The division does not depend on a run's seed, so that all runs are tested on the same images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from shared.core.errors import BadInput, UnknownName
from shared.runtime.memory import check_images
from shared.training.data.dataset import Dataset, DataSpec, load, open_unpacked, unpack_once
from shared.training.data.sources import Arrays, DataUnavailable, check_name

NAME = "digit_domains"
FIVE = ("mnist", "mnist_m", "svhn", "synth_digits", "usps")
N_CLASSES = 10
SIZE = 28
TRAIN_SHARE = 0.8
BLOCK = 4096
"""Images brought to shape at a time."""

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


def names_of(spec: DataSpec) -> tuple[str, ...]:
    """The sets that a spec asks for, in its order; none where it asks for one set as it is."""
    return (spec.domains or FIVE) if spec.name == NAME else ()


def check_data(spec: DataSpec) -> None:
    """Refuse a data set that cannot be, as far as its name and options tell.

    Raises:
        UnknownName, BadInput: naming the field.
    """
    if spec.name != NAME:
        for field in ("domains", "size", "split"):
            if getattr(spec, field) is not None:
                raise BadInput(f"{field} goes with data: {NAME}, not with {spec.name}", field=f"data.{field}")
        check_name(spec.name, also=(NAME,))
        return
    for name in names_of(spec):
        if name not in FIVE:
            raise UnknownName("domain", name, list(FIVE), field="data.domains")


def open_data(spec: DataSpec, *, data_dir: Path | None, cache_dir: Path) -> Dataset:
    """The data set of a spec, memory-mapped.

    Raises:
        DataUnavailable, DataMalformed: as `load` does, for each of the sets.
        BadInput: there is not the memory to put them together.
    """
    names = names_of(spec)
    if not names:
        return load(spec.name, data_dir=data_dir, cache_dir=cache_dir)
    parts = [_part(name, names, data_dir, cache_dir) for name in names]
    size, split = spec.size or SIZE, spec.split or "whole"
    key = "|".join([f"{size} {split}", *(f"{part.name} {part.digest}" for part in parts)])
    folder = cache_dir / f"{NAME}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    unpack_once(folder, lambda: put_together(parts, size, whole=split == "whole"), N_CLASSES)
    return open_unpacked(NAME, folder, N_CLASSES, names)


def _part(name: str, names: Sequence[str], data_dir: Path | None, cache_dir: Path) -> Dataset:
    """One of the sets; where it is missing, the error says how a spec leaves it out."""
    try:
        return load(name, data_dir=data_dir, cache_dir=cache_dir)
    except DataUnavailable as error:
        others = ", ".join(other for other in names if other != name)
        instead = f"; or leave it out: data.domains=[{others}], and fewer clients in num_devices or num_edges"
        raise DataUnavailable(error.detail + (instead if others else ""), field="data.domains") from None


def put_together(parts: Sequence[Dataset], size: int, *, whole: bool) -> Arrays:
    """The sets' images and labels as one set, with the position of each image's own set as its domain.

    Raises:
        BadInput: the memory for that is not there.
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
    """Positions of a seeded share of each class, rounded, and of the rest; both ascending."""
    rng = np.random.default_rng(0)
    of_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(N_CLASSES)]
    first = np.sort(np.concatenate([members[: round(share * len(members))] for members in of_class]))
    return first, np.setdiff1d(np.arange(len(labels)), first)


def resized(images: Images, size: int) -> Images:
    """Images, uint8 (n, height, width[, channels]), as uint8 (n, size, size, 3)."""
    planes = images[..., None] if images.ndim == 3 else images
    if planes.shape[1:3] == (size, size):
        return np.ascontiguousarray(np.broadcast_to(planes, (*planes.shape[:3], 3)))
    made = np.empty((len(planes), size, size, 3), np.uint8)
    for begin in range(0, len(planes), BLOCK):
        block = torch.from_numpy(planes[begin : begin + BLOCK].transpose(0, 3, 1, 2).astype(np.float32))
        scaled = functional.interpolate(block, (size, size), mode="bilinear", antialias=True)
        made[begin : begin + BLOCK] = scaled.round_().clamp_(0, 255).numpy().transpose(0, 2, 3, 1)
    return made
