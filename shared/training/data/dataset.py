"""Prepared data sets: validated, unpacked once, then memory-mapped read-only by every process.

`shared.training.data.sources` reads or downloads the arrays. They are stored as `.npy` files in the cache folder,
because `np.load` ignores `mmap_mode` for `.npz`, so that each process would hold its own copy.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from shared.core.records import Record
from shared.core.validation import Names
from shared.training.data.sources import (
    DATASETS,
    IMAGES,
    LABELS,
    REQUIRED,
    WRITERS,
    Arrays,
    DataMalformed,
    check_name,
    fetched,
    folder_of,
    read_folder,
    read_npz,
)


class DataSpec(Record):
    """The data set of a run; `domains`, `size` and `split` are for `digit_domains` only.

    Attributes:
        name: name of the data set, see `DATASETS`.
        n_train: number of training images, drawn with a seed and stratified by class; None means all.
        n_test: number of test images, drawn likewise; None means all.
        domains: the digit data sets that are combined, in this order; None means all five.
        size: side to which their images are resized, in pixels; None means 28.
        split: `whole`: each set's training and test images are pooled and split into 80 % training and 20 % test
            images; `official`: 80 % of its training images, and its own test images. None means `whole`.
    """

    name: str = Field(default="digits", pattern=r"^[a-z][a-z0-9_]{0,63}$")
    n_train: int | None = Field(default=None, ge=1, le=10**9)
    n_test: int | None = Field(default=None, ge=1, le=10**9)
    domains: Annotated[Names, Field(min_length=1)] | None = None
    size: int | None = Field(default=None, ge=8, le=256)
    split: Literal["whole", "official"] | None = None


BLOCK = 65_536
"""Elements of images that are converted at a time, few enough to stay in the cache."""
DOMAINS = ("train_domain", "test_domain")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A memory-mapped data set.

    Attributes:
        train_x: images 0..255, uint8, (n, height, width) or (n, height, width, channels); `test_x` alike.
        train_y: labels from 0, int64, (n,); `test_y` alike.
        train_writer: writer of each image, int64, (n,), None if the writers are unknown; `test_writer` alike.
        train_domain: index in `domains` of each image's domain, int64, (n,), None without domains; `test_domain` alike.
        n_classes: number of classes of the data set, even if a part lacks some of them.
        input_shape: (channels, height, width), the input of models.
        digest: sha256 over names, dtypes, shapes and bytes of the arrays.
        domains: names of the domains.
    """

    name: str
    train_x: npt.NDArray[np.uint8]
    train_y: npt.NDArray[np.int64]
    test_x: npt.NDArray[np.uint8]
    test_y: npt.NDArray[np.int64]
    train_writer: npt.NDArray[np.int64] | None
    test_writer: npt.NDArray[np.int64] | None
    n_classes: int
    input_shape: tuple[int, int, int]
    digest: str
    train_domain: npt.NDArray[np.int64] | None = None
    test_domain: npt.NDArray[np.int64] | None = None
    domains: tuple[str, ...] = ()


_READING = threading.Lock()
"""Held while arrays are opened: numpy calls `ast.literal_eval`, which may fail in concurrent threads of Python 3.11."""


def load(name: str, *, data_dir: Path | None, cache_dir: Path) -> Dataset:
    """Opens a data set; the first process unpacks it, all others wait and map the same files.

    Args:
        name: one of `DATASETS`.
        data_dir: folder that may hold `<name>.npz` (STRATA_DATA_DIR); only read.
        cache_dir: folder for unpacked arrays and downloads; created if missing.

    Raises:
        UnknownName: no data set has that name.
        DataMalformed: the file is damaged, or a key has the wrong dtype, shape or range.
        DataUnavailable: there is no file, and no download.
    """
    check_name(name)
    known = DATASETS[name]
    cache_dir.mkdir(parents=True, exist_ok=True)
    archive = data_dir / f"{name}.npz" if data_dir is not None else None
    if archive is not None and archive.is_file():
        folder = cache_dir / f"{name}-{_file_digest(archive, cache_dir)[:24]}"
        unpack_once(folder, lambda: read_npz(archive), known.n_classes)
    elif (pictures := folder_of(name, data_dir)) is not None:
        folder = cache_dir / f"{name}-{_folder_digest(pictures)[:24]}"
        unpack_once(folder, lambda: read_folder(name, pictures), known.n_classes)
    else:
        folder = cache_dir / f"{name}-{known.version()}"
        unpack_once(folder, lambda: fetched(name, data_dir, cache_dir / "downloads"), known.n_classes)
    return open_unpacked(name, folder, known.n_classes)


def as_batch(x: npt.NDArray[np.uint8] | Tensor) -> Tensor:
    """Returns images as the input of models: float32, (n, channels, height, width), `(x / 255 - 0.5) / 0.5`.

    The result is contiguous and lies in memory that torch allocated: with other alignments, as in views of a file or of
    a message body, `linear` returns other bits.

    Args:
        x: uint8, (n, height, width) or (n, height, width, channels).
    """
    array = x.numpy() if isinstance(x, Tensor) else x
    planes = array[:, None] if array.ndim == 3 else array.transpose(0, 3, 1, 2)
    floats = torch.empty(planes.shape, dtype=torch.float32)
    block = max(BLOCK // max(math.prod(planes.shape[1:]), 1), 1)
    for begin in range(0, len(planes), block):
        part = floats[begin : begin + block]
        part.numpy()[...] = planes[begin : begin + block]
        part.div_(255).sub_(0.5).div_(0.5)
    return floats


# ---- the cache folder


def open_unpacked(name: str, folder: Path, n_classes: int, domains: tuple[str, ...] = ()) -> Dataset:
    """Maps the arrays of a folder that `unpack_once` has written."""
    files = folder.glob("*.npy")
    with _READING:
        maps: Arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    height, width, *channels = maps["train_x"].shape[1:]
    return Dataset(
        name=name,
        **{key: maps.get(key) for key in (*IMAGES, *LABELS, *WRITERS, *DOMAINS)},  # type: ignore[arg-type]
        n_classes=n_classes,
        input_shape=(channels[0] if channels else 1, height, width),
        digest=meta["digest"],
        domains=domains,
    )


def unpack_once(folder: Path, read: Callable[[], Arrays], n_classes: int) -> None:
    """Writes validated arrays and their digest to `folder`, atomically and once among all processes."""
    if folder.is_dir():
        return
    with _lock(folder.with_suffix(".lock")):
        if folder.is_dir():
            return
        arrays = _checked(read(), n_classes, folder.name)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        try:
            for key, array in arrays.items():
                np.save(part / f"{key}.npy", array, allow_pickle=False)
            (part / "meta.json").write_text(json.dumps({"digest": digest(arrays)}), encoding="utf-8")
            part.chmod(0o755)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes; the kernel releases it if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns the sha256 over names, dtypes, shapes and bytes of arrays, in the order of their names."""
    sha = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        sha.update(f"{key}|{array.dtype.str}|{array.shape}|".encode())
        sha.update(array.data)
    return sha.hexdigest()


def _file_digest(path: Path, cache_dir: Path) -> str:
    """Returns the sha256 of a file, cached by path, size and time so that not every process hashes the file."""
    stat = path.stat()
    seen = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    note = cache_dir / f".digest-{hashlib.sha256(seen[0].encode()).hexdigest()[:24]}.json"  # type: ignore[attr-defined]
    if note.is_file():
        remembered = json.loads(note.read_text(encoding="utf-8"))
        if remembered[:3] == seen:
            return str(remembered[3])
    with path.open("rb") as file:
        value = hashlib.file_digest(file, "sha256").hexdigest()
    part = note.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps([*seen, value]), encoding="utf-8")
    part.replace(note)
    return value


def _folder_digest(folder: Path) -> str:
    """Returns the sha256 over a folder's path and the names, sizes and times of all files in it."""
    sha = hashlib.sha256(os.fsencode(folder.resolve()))
    for where, folders, files in os.walk(folder):
        folders.sort()
        sha.update(os.fsencode(f"{where}|"))
        for name in sorted(files):
            stat = os.lstat(os.path.join(where, name))
            sha.update(os.fsencode(f"{name}|{stat.st_size}|{stat.st_mtime_ns}|"))
    return sha.hexdigest()


# ---- checking


def _checked(arrays: Arrays, n_classes: int, where: str) -> Arrays:
    """Returns the arrays with labels and writers as int64.

    Raises:
        DataMalformed: an array is missing or wrong; the message names the key.
    """
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        raise DataMalformed(f"{where}: key {', '.join(missing)} is missing (needed: {', '.join(REQUIRED)})")
    for key in IMAGES:
        _check_images(arrays[key], f"{where}: {key}")
    if arrays["train_x"].shape[1:] != arrays["test_x"].shape[1:]:
        shapes = " and ".join(str(arrays[key].shape[1:]) for key in IMAGES)
        raise DataMalformed(f"{where}: train_x and test_x have images of different shapes, {shapes}")
    for images, *numbers in zip(IMAGES, LABELS, WRITERS, strict=True):
        for key in numbers:
            if key in arrays:
                _check_numbers(arrays[key], len(arrays[images]), f"{where}: {key}")
    for key in LABELS:
        low, high = int(arrays[key].min()), int(arrays[key].max())
        if low < 0 or high >= n_classes:
            raise DataMalformed(f"{where}: {key} has labels {low}..{high}, expected 0..{n_classes - 1}")
    return {key: array if key in IMAGES else array.astype(np.int64) for key, array in arrays.items()}


def _check_images(x: npt.NDArray[Any], what: str) -> None:
    if x.dtype != np.uint8:
        raise DataMalformed(f"{what} has dtype {x.dtype}, expected uint8 (0..255)")
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] not in (1, 3)):
        raise DataMalformed(f"{what} has shape {x.shape}, expected (n, height, width) or (..., 1 or 3 channels)")
    if 0 in x.shape:
        raise DataMalformed(f"{what} is empty: shape {x.shape}")


def _check_numbers(values: npt.NDArray[Any], n: int, what: str) -> None:
    if not np.issubdtype(values.dtype, np.integer):
        raise DataMalformed(f"{what} has dtype {values.dtype}, expected int64")
    if values.shape != (n,):
        raise DataMalformed(f"{what} has shape {values.shape}, expected ({n},), one for each image")
