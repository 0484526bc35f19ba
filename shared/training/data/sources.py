"""Sources of the data sets by name; their arrays are validated later, by `shared.training.data.dataset`.

A data set is read from the first source that has it: `<name>.npz` in the data folder; a folder of images there
(`tiny_imagenet` only); scikit-learn's files (`digits`, `breast_cancer`, `sklearn_docs`) or a generator (`synth_digits`,
`vibration`); torchvision's download. For several data sets combined into one see `shared.training.data.digit_domains`.

`emnist` is EMNIST's `byclass` split (62 classes), from which FEMNIST is made. torchvision does not give the writers,
so that `femnist` (the same classes, with writers) is read from an `.npz` only; so is `mnist_m`.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.core.errors import StrataError, UnknownName
from shared.training.data import scikit_learn, vibration
from shared.training.data.image_folders import Pictures, read_pictures, tiny_imagenet

Arrays = dict[str, npt.NDArray[Any]]
IMAGES, LABELS, WRITERS = ("train_x", "test_x"), ("train_y", "test_y"), ("train_writer", "test_writer")
GROUPS, MASKS = ("train_group", "test_group"), ("train_mask", "test_mask")
REQUIRED = ("train_x", "train_y", "test_x", "test_y")
KEYS = (*REQUIRED, *WRITERS, *GROUPS, *MASKS, "n_classes", "vocabulary", "padding", "mean", "std")
"""The keys of a data set's arrays; those of `REQUIRED` must be there."""


class DataUnavailable(StrataError):
    """The data set is not in the data folder and cannot be downloaded; the message says which file to provide."""

    status, code = 422, "data_unavailable"


class DataMalformed(StrataError):
    """The data set's file is damaged or has wrong contents; the message names the key."""

    status, code = 422, "data_malformed"


@dataclass(frozen=True)
class DatasetSource:
    """Where a data set comes from if the data folder has no `.npz` of it.

    Attributes:
        n_classes: number of classes of images; None for other data, which their arrays describe.
        fetch: returns the arrays, given a folder for downloads; None means no download.
        pictures: lists the images of a data set that is published as a folder; None means that it is not.
        version: returns the version of a generated data set; each version has its own entry in the cache.
        description: what other data than images are, one line.
        local: where `fetch` has it from, if it needs neither file nor network.
    """

    n_classes: int | None
    fetch: Callable[[Path], Arrays] | None
    pictures: Callable[[Path], Pictures] | None = None
    version: Callable[[], str] = lambda: "fetched"
    description: str = ""
    local: str = ""


def check_name(name: str, also: tuple[str, ...] = ()) -> None:
    """Refuses a name that is neither a data set's nor in `also`.

    Raises:
        UnknownName: the name is unknown; the message lists the known names.
    """
    if name not in DATASETS:
        raise UnknownName("data set", name, [*DATASETS, *also], field="data.name")


def read_npz(path: Path, known: Sequence[str] = KEYS) -> Arrays:
    """Reads the arrays of a data set from an `.npz`: those of the known keys.

    Raises:
        DataMalformed: the file cannot be read.
    """
    try:
        with path.open("rb") as file:  # np.load would leave the file of a damaged archive open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataMalformed(f"{path} is not an .npz archive")
            keys = [key for key in known if key in archive.files]
            with zipfile.ZipFile(path) as heads:
                for key in keys:
                    _check_size(heads, key)
            return {key: archive[key] for key in keys}
    except (ValueError, KeyError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataMalformed(f"{path} cannot be read: {error}") from error


def _check_size(archive: zipfile.ZipFile, key: str) -> None:
    """Checks that an array is as long as its header says, before memory is allocated for it.

    Raises:
        ValueError: the array is shorter, or holds objects.
    """
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as file:
        old = np.lib.format.read_magic(file) == (1, 0)
        read_head = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_head(file)
    if dtype.hasobject:
        raise ValueError(
            f"{key} holds Python objects, which are not read; save numbers or texts, as by {key}.astype(str)"
        )
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > info.file_size:
        raise ValueError(f"the header of {key} says {claimed} bytes, but it has only {info.file_size}")


def fetched(name: str, data_dir: Path | None, downloads: Path) -> Arrays:
    """Downloads or generates the arrays of a data set that is not in the data folder.

    Raises:
        DataUnavailable: that is not possible or fails; the message says which file to provide.
    """
    where = f"as {name}.npz into {data_dir or 'the folder that STRATA_DATA_DIR names'}"
    help_text = f"put the data set {where}, with keys {', '.join(REQUIRED)} (images uint8, labels int64)"
    if DATASETS[name].pictures is not None:
        help_text += f", or the published folder as {name}"
    fetch = DATASETS[name].fetch
    if fetch is None:
        raise DataUnavailable(f"{name} cannot be downloaded; {help_text}", field="data.name")
    try:
        return fetch(downloads)
    except Exception as error:  # urllib, ssl, tarfile, torchvision ... raise their own types
        raise DataUnavailable(f"{name} could not be loaded ({error}); {help_text}", field="data.name") from error


def folder_of(name: str, data_dir: Path | None) -> Path | None:
    """Returns the folder of a data set's images in the data folder, None if there is none."""
    if data_dir is None or DATASETS[name].pictures is None or not (data_dir / name).is_dir():
        return None
    return data_dir / name


def pictures_of(name: str, folder: Path) -> Pictures:
    """Returns the files and labels of a data set that is published as a folder.

    Raises:
        DataMalformed: the folder is damaged or incomplete.
    """
    listed = DATASETS[name].pictures
    assert listed is not None  # noqa: S101 - see `folder_of`
    try:
        return listed(folder)
    except (OSError, ValueError) as error:
        raise DataMalformed(f"{folder} cannot be read: {error}") from error


def read_folder(name: str, folder: Path) -> Arrays:
    """Reads the arrays of a data set that is published as a folder.

    Raises:
        DataMalformed: the folder is damaged or incomplete.
    """
    arrays: Arrays = {}
    for part, pictures in pictures_of(name, folder).items():
        try:
            arrays[f"{part}_x"] = read_pictures([path for path, _ in pictures])
        except (OSError, ValueError) as error:
            raise DataMalformed(f"{folder} cannot be read: {error}") from error
        arrays[f"{part}_y"] = np.array([label for _, label in pictures], dtype=np.int64)
    return arrays


def _synth_digits(_: Path) -> Arrays:
    """Returns generated digits, see `shared.training.data.synthetic_digits`."""
    from shared.training.data.synthetic_digits import synth_digits

    return synth_digits()


def _synth_version() -> str:
    from shared.training.data.synthetic_digits import version

    return version()


def _torchvision(
    class_name: str, *, labels: str = "targets", axes: tuple[int, ...] | None = None, **options: str
) -> Callable[[Path], Arrays]:
    """Returns a function that downloads with torchvision's class; `axes` transposes its images to NHW or NHWC."""

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


_BUNDLED, _GENERATED = "bundled with scikit-learn", "generated at first use"
DATASETS: dict[str, DatasetSource] = {
    "digits": DatasetSource(10, scikit_learn.digits, local=_BUNDLED),
    "mnist": DatasetSource(10, _torchvision("MNIST")),
    "fashion_mnist": DatasetSource(10, _torchvision("FashionMNIST")),
    "cifar10": DatasetSource(10, _torchvision("CIFAR10")),
    "cifar100": DatasetSource(100, _torchvision("CIFAR100")),
    "usps": DatasetSource(10, _torchvision("USPS")),
    "mnist_m": DatasetSource(10, None),
    "svhn": DatasetSource(10, _torchvision("SVHN", labels="labels", axes=(0, 2, 3, 1))),
    # the published files hold transposed images
    "emnist": DatasetSource(62, _torchvision("EMNIST", axes=(0, 2, 1), split="byclass")),
    "femnist": DatasetSource(62, None),
    "tiny_imagenet": DatasetSource(200, None, tiny_imagenet),
    "synth_digits": DatasetSource(10, _synth_digits, version=_synth_version, local=_GENERATED),
    "breast_cancer": DatasetSource(
        None,
        scikit_learn.breast_cancer,
        version=scikit_learn.version,
        description="a table: 30 measurements of each tumour, malignant or benign, by hospital",
        local=_BUNDLED,
    ),
    "sklearn_docs": DatasetSource(
        None,
        scikit_learn.sklearn_docs,
        version=scikit_learn.version,
        description="text: the next character of documentation, by document",
        local=_BUNDLED,
    ),
    "vibration": DatasetSource(
        None,
        vibration.vibration,
        version=lambda: str(vibration.VERSION),
        description="signals: the wear of machines' bearings by their vibration, by machine",
        local=_GENERATED,
    ),
}
"""Sources of all data sets, by name."""
