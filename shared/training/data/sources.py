"""Sources of data sets: which there are by name, and how their arrays are had, not yet checked.

In this order: `<name>.npz` in the data folder; a folder of pictures there (`tiny_imagenet` only); scikit-learn's bundle
(`digits`), or made here (`synth_digits`); torchvision's download. What becomes of them: `shared.training.data`; several
sets as one: `shared.training.domains`.

`emnist` is EMNIST's `byclass` split (62 classes), the one FEMNIST is cut from; torchvision knows no
writers, so `femnist` (the same classes, with writers) and `mnist_m` come from an `.npz` only.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.core.errors import StrataError, UnknownName
from shared.training.data.image_folders import Pictures, read_pictures, tiny_imagenet

Arrays = dict[str, npt.NDArray[Any]]
IMAGES, LABELS, WRITERS = ("train_x", "test_x"), ("train_y", "test_y"), ("train_writer", "test_writer")
REQUIRED = ("train_x", "train_y", "test_x", "test_y")


class DataUnavailable(StrataError):
    """The data set is neither in the data folder nor to be downloaded; the message says what to put where."""

    status, code = 422, "data_unavailable"


class DataMalformed(StrataError):
    """The data set's file does not hold what it should; the message names the key."""

    status, code = 422, "data_malformed"


@dataclass(frozen=True)
class DatasetSource:
    """What is known beforehand.

    Attributes:
        n_classes: of the set.
        fetch: how to have it by way of a folder for downloads, None where it is not to be had so.
        pictures: those of the published folder.
        version: of what is made here, by what; what other versions made lies elsewhere in the cache.
    """

    n_classes: int
    fetch: Callable[[Path], Arrays] | None
    pictures: Callable[[Path], Pictures] | None = None
    version: Callable[[], str] = lambda: "fetched"


def check_name(name: str, also: tuple[str, ...] = ()) -> None:
    """Refuse a name that no data set has, nor one of those named besides.

    Raises:
        UnknownName: listing the names there are.
    """
    if name not in DATASETS:
        raise UnknownName("data set", name, [*DATASETS, *also], field="data.name")


def read_npz(path: Path) -> Arrays:
    """The arrays of an `.npz` that a data set has.

    Raises:
        DataMalformed: it cannot be read.
    """
    try:
        with path.open("rb") as file:  # ours to close: np.load forgets it on a damaged archive
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataMalformed(f"{path} is no .npz archive")
            keys = [key for key in (*IMAGES, *LABELS, *WRITERS) if key in archive.files]
            with zipfile.ZipFile(path) as heads:
                for key in keys:
                    _check_size(heads, key)
            return {key: archive[key] for key in keys}
    except (ValueError, KeyError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataMalformed(f"{path} cannot be read: {error}") from error


def _check_size(archive: zipfile.ZipFile, key: str) -> None:
    """See that an array is as long as its own head says, before memory is taken for it.

    Raises:
        ValueError: it is shorter.
    """
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as file:
        old = np.lib.format.read_magic(file) == (1, 0)
        read_head = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_head(file)
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > info.file_size:
        raise ValueError(f"{key} says that it has {claimed} bytes, and has not {info.file_size}")


def fetched(name: str, data_dir: Path | None, downloads: Path) -> Arrays:
    """The arrays of a data set of which the data folder has nothing.

    Raises:
        DataUnavailable: it is not to be had, for whatever reason; says what to put where.
    """
    where = f"as {name}.npz into {data_dir or 'a folder that STRATA_DATA_DIR names'}"
    help_text = f"put the data set {where}, with keys {', '.join(REQUIRED)} (images uint8, labels int64)"
    if DATASETS[name].pictures is not None:
        help_text += f", or as it is published as folder {name}"
    fetch = DATASETS[name].fetch
    if fetch is None:
        raise DataUnavailable(f"{name} is in no download known here; {help_text}", field="data.name")
    try:
        return fetch(downloads)
    except Exception as error:  # urllib, ssl, tarfile, torchvision ... each fails in its own way
        raise DataUnavailable(f"{name} could not be had ({error}); {help_text}", field="data.name") from error


def folder_of(name: str, data_dir: Path | None) -> Path | None:
    """The folder of a data set's pictures, where it is published as one and there is one."""
    if data_dir is None or DATASETS[name].pictures is None or not (data_dir / name).is_dir():
        return None
    return data_dir / name


def pictures_of(name: str, folder: Path) -> Pictures:
    """The files of a data set that is published as a folder, and their labels.

    Raises:
        DataMalformed: the folder is damaged, or not all is there.
    """
    listed = DATASETS[name].pictures
    assert listed is not None  # noqa: S101 - see `folder_of`
    try:
        return listed(folder)
    except (OSError, ValueError) as error:
        raise DataMalformed(f"{folder} cannot be read: {error}") from error


def read_folder(name: str, folder: Path) -> Arrays:
    """The arrays of a data set that is published as a folder.

    Raises:
        DataMalformed: the folder is damaged, or not all is there.
    """
    arrays: Arrays = {}
    for part, pictures in pictures_of(name, folder).items():
        try:
            arrays[f"{part}_x"] = read_pictures([path for path, _ in pictures])
        except (OSError, ValueError) as error:
            raise DataMalformed(f"{folder} cannot be read: {error}") from error
        arrays[f"{part}_y"] = np.array([label for _, label in pictures], dtype=np.int64)
    return arrays


def _digits(_: Path) -> Arrays:
    """scikit-learn's bundled 8x8 digits (1,797, of UCI), 0..16 scaled to 0..255, split 80/20.

    The split is ours (the bundle has none): of each class a seeded fifth, rounded, is the test set.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = np.rint(x.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    rng = np.random.default_rng(0)
    of_class = [rng.permutation(np.flatnonzero(y == label)) for label in range(10)]
    test = np.sort(np.concatenate([members[: round(len(members) / 5)] for members in of_class]))
    train = np.setdiff1d(np.arange(len(y)), test)
    return {"train_x": x[train], "train_y": y[train], "test_x": x[test], "test_y": y[test]}


def _synth_digits(_: Path) -> Arrays:
    """Made here; see `shared.training.synth`."""
    from shared.training.data.synthetic_digits import synth_digits

    return synth_digits()


def _synth_version() -> str:
    from shared.training.data.synthetic_digits import version

    return version()


def _torchvision(
    class_name: str, *, labels: str = "targets", axes: tuple[int, ...] | None = None, **options: str
) -> Callable[[Path], Arrays]:
    """A source that downloads with torchvision's class; `axes` brings its images to NHW or NHWC."""

    def fetch(root: Path) -> Arrays:
        from shared.training.torchvision_compat import torchvision

        arrays: Arrays = {}
        for part in ("train", "test"):
            which: dict[str, Any] = {"split": part} if class_name == "SVHN" else {"train": part == "train"}
            made = getattr(torchvision().datasets, class_name)
            source = made(root=str(root), download=True, **which, **options)
            images = np.asarray(source.data)
            arrays[f"{part}_x"] = images if axes is None else images.transpose(axes)
            arrays[f"{part}_y"] = np.asarray(getattr(source, labels))
        return arrays

    return fetch


DATASETS: dict[str, DatasetSource] = {
    "digits": DatasetSource(10, _digits),
    "mnist": DatasetSource(10, _torchvision("MNIST")),
    "fashion_mnist": DatasetSource(10, _torchvision("FashionMNIST")),
    "cifar10": DatasetSource(10, _torchvision("CIFAR10")),
    "cifar100": DatasetSource(100, _torchvision("CIFAR100")),
    "usps": DatasetSource(10, _torchvision("USPS")),
    "mnist_m": DatasetSource(10, None),
    "svhn": DatasetSource(10, _torchvision("SVHN", labels="labels", axes=(0, 2, 3, 1))),
    # the published files hold each picture transposed
    "emnist": DatasetSource(62, _torchvision("EMNIST", axes=(0, 2, 1), split="byclass")),
    "femnist": DatasetSource(62, None),
    "tiny_imagenet": DatasetSource(200, None, tiny_imagenet),
    "synth_digits": DatasetSource(10, _synth_digits, version=_synth_version),
}
"""The data sets by name."""
