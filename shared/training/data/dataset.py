"""Prepared data sets: validated, unpacked once, then memory-mapped read-only by every process.

`shared.training.data.sources` reads or downloads the arrays. They are stored as `.npy` files in the cache folder,
because `np.load` ignores `mmap_mode` for `.npz`, so that each process would hold its own copy.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.core.field_errors import told
from shared.core.files import sync, write_file
from shared.core.locks import lock
from shared.training.data.checks import Description, checked, checked_images, of_images
from shared.training.data.class_names import CLASS_NAMES
from shared.training.data.groups import Groups
from shared.training.data.reading import Read, Reading
from shared.training.data.sources import (
    DATASETS,
    IMAGES,
    KEYS,
    LABELS,
    WRITERS,
    Arrays,
    DataMalformed,
    check_name,
    fetched,
    folder_of,
    read_folder,
    read_npz,
)
from shared.training.data.standardised import standardised
from shared.training.description import Classes, Normalisation, Sample, Target
from shared.training.specs import Layout, TargetKind

READERS = 5
"""The version of what reads files and plug-ins' data: what an older one has read is not taken from the cache."""
BLOCK = 65_536
"""Elements of samples that are converted at a time, few enough to stay in the cache."""
DOMAINS = ("train_domain", "test_domain")
IMAGE_KEYS = (*IMAGES, *LABELS, *WRITERS)
"""The keys that a data set of images has, whose number of classes is known."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A memory-mapped data set.

    Attributes:
        train_x: samples (n, ...); uint8 images 0..255, (n, height, width) or (n, height, width, channels); float32
            numbers; or int64 indices. `test_x` alike.
        train_y: targets, see `target`: int64 (n,) or (n, length), float32 (n, ...); `test_y` alike.
        train_group: group of each sample, such as its writer, int64, (n,), None without groups; `test_group` alike.
        train_domain: index in `domains` of each image's domain, int64, (n,), None without domains; `test_domain` alike.
        target: what a model is to say of a sample.
        sample: one sample as a model gets it.
        digest: sha256 over names, dtypes, shapes and bytes of the arrays.
        domains: names of the domains.
        normalisation: of the samples; None means that images are scaled to -1..1, and other samples stay as they are.
        reading: what the arrays mean, and what was left out; empty where the source says nothing.
    """

    name: str
    train_x: npt.NDArray[Any]
    train_y: npt.NDArray[Any]
    test_x: npt.NDArray[Any]
    test_y: npt.NDArray[Any]
    train_group: npt.NDArray[np.int64] | None
    test_group: npt.NDArray[np.int64] | None
    target: Target
    sample: Sample
    digest: str
    train_domain: npt.NDArray[np.int64] | None = None
    test_domain: npt.NDArray[np.int64] | None = None
    domains: tuple[str, ...] = ()
    normalisation: Normalisation | None = None
    reading: Reading = field(default_factory=Reading)

    @property
    def groups(self) -> Groups | None:
        """The groups of its samples: writers and the like, else domains; None without any."""
        if self.train_group is not None and self.test_group is not None:
            return Groups(self.train_group, self.test_group, self.reading.groups)
        if self.train_domain is not None and self.test_domain is not None:
            return Groups(self.train_domain, self.test_domain, self.domains)
        return None

    def encode(self, x: npt.NDArray[Any]) -> Tensor:
        """Returns samples of this data set as the input of models, see `as_batch`."""
        return as_batch(x, self.normalisation)


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
        folder = cache_dir / f"{name}-{file_digest(archive, cache_dir)[:24]}"
        unpack_once(folder, lambda: read_npz(archive, KEYS if known.n_classes is None else IMAGE_KEYS), known.n_classes)
    elif (pictures := folder_of(name, data_dir)) is not None:
        folder = cache_dir / f"{name}-{folder_digest(pictures)[:24]}"
        unpack_once(folder, lambda: read_folder(name, pictures), known.n_classes)
    else:
        folder = cache_dir / f"{name}-{known.version()}"
        unpack_once(folder, lambda: fetched(name, data_dir, cache_dir / "downloads"), known.n_classes)
    found = open_unpacked(name, folder, known.n_classes)
    names = CLASS_NAMES.get(name, ())
    if found.reading.classes or found.target != Classes(len(names)):
        return found
    return replace(found, reading=found.reading.model_copy(update={"classes": names}))


def as_batch(x: npt.NDArray[Any] | Tensor, normalisation: Normalisation | None = None) -> Tensor:
    """Returns samples as the input of models: images as float32, (n, channels, height, width).

    Images become `(x / 255 - mean) / std`, where mean and std are 0.5 without a normalisation; floats
    `(x - mean) / std`, or stay as they are without one; so do indices. The result is contiguous and lies in memory that
    torch allocated: with other alignments, as in views of a file or of a message body, `linear` returns other bits.

    Args:
        x: images, uint8, (n, height, width) or (n, height, width, channels); or float32 or int64, (n, ...).
        normalisation: of the data set.
    """
    array = x.numpy() if isinstance(x, Tensor) else x
    if array.dtype != np.uint8:
        return _as_stored(array, normalisation)
    mean, std = (0.5, 0.5) if normalisation is None else (normalisation.mean, normalisation.std)
    planes = array[:, None] if array.ndim == 3 else array.transpose(0, 3, 1, 2)
    floats = torch.empty(planes.shape, dtype=torch.float32)
    for part, block in _blocks(floats, planes):
        part.numpy()[...] = block
        part.div_(255).sub_(mean).div_(std)
    return floats


def _as_stored(x: npt.NDArray[Any], normalisation: Normalisation | None) -> Tensor:
    made = torch.empty(x.shape, dtype=torch.int64 if x.dtype == np.int64 else torch.float32)
    for part, block in _blocks(made, x):
        part.numpy()[...] = block
        if normalisation is not None:
            part.sub_(normalisation.mean).div_(normalisation.std)
    return made


def _blocks(into: Tensor, x: npt.NDArray[Any]) -> Iterator[tuple[Tensor, npt.NDArray[Any]]]:
    """Yields parts of a batch, with the samples that are written into them."""
    block = max(BLOCK // max(math.prod(x.shape[1:]), 1), 1)
    for begin in range(0, len(x), block):
        yield into[begin : begin + block], x[begin : begin + block]


def as_targets(y: npt.NDArray[Any]) -> Tensor:
    """Returns targets as a tensor of torch's own memory: int64 classes and tokens, float32 numbers."""
    return torch.from_numpy(y.astype(np.int64)) if np.issubdtype(y.dtype, np.integer) else torch.tensor(y)


# ---- the cache folder


def open_unpacked(name: str, folder: Path, n_classes: int | None, domains: tuple[str, ...] = ()) -> Dataset:
    """Maps the arrays of a folder that `unpack_once` has written; `n_classes` as there.

    Raises:
        DataMalformed: the folder is damaged, or of another version.
    """
    try:
        return _mapped(name, folder, n_classes, domains)
    except (ValueError, LookupError, TypeError, EOFError, FileNotFoundError) as error:
        why = f"{folder}, an unpacked copy of the data, is damaged or of another version"
        raise DataMalformed(f"{name}: {why} ({told(error)}): remove that folder, and it is made anew") from None


def _mapped(name: str, folder: Path, n_classes: int | None, domains: tuple[str, ...]) -> Dataset:
    files = folder.glob("*.npy")
    with _READING:
        maps: Arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    found = of_images(maps["train_x"], n_classes) if n_classes is not None else Description.of_json(meta)
    named: dict[str, Any] = {key: maps.get(key) for key in (*IMAGES, *LABELS, *DOMAINS)}
    groups: dict[str, Any] = {
        f"{part}_group": maps.get(f"{part}_group", maps.get(f"{part}_writer")) for part in ("train", "test")
    }
    return Dataset(
        name=name,
        **named,
        **groups,
        target=found.target,
        sample=found.sample,
        digest=meta["digest"],
        domains=domains,
        normalisation=_normalisation(maps),
        reading=Reading.model_validate(meta.get("reading", {})),
    )


def _normalisation(maps: Arrays) -> Normalisation | None:
    if "mean" not in maps:
        return None
    return Normalisation(torch.tensor(maps["mean"]), torch.tensor(maps["std"]))


def unpack_once(
    folder: Path,
    read: Callable[[], Arrays | Read],
    n_classes: int | None,
    kind: TargetKind | None = None,
    layout: Layout | None = None,
    *,
    standardise: bool | None = False,
    where: str = "",
) -> None:
    """Writes validated arrays, their description, digest and reading to `folder`, atomically, once among all processes.

    Args:
        folder: that of the cache.
        read: reads the arrays, and may say how.
        n_classes: number of classes of images; None for other data.
        kind: what the targets of other data are; None means what their type and values say.
        layout: which axis of other data holds the channels; None means that they are as models get them.
        standardise: whether targets that are numbers are standardised; None means that their size decides.
        where: what messages call the data; by default the folder's name.
    """
    if folder.is_dir():
        return
    with _lock(folder.with_suffix(".lock")):
        if folder.is_dir():
            return
        source, where = Read.of(read()), where or folder.name
        reading = source.reading
        if n_classes is not None:
            arrays, found = checked_images(source.arrays, n_classes, where)
        else:
            arrays, found, reading = checked(source, kind, where, layout)
            given = arrays, source.arrays, found.target, standardise, reading, where
            arrays, target, reading = standardised(*given)
            found = replace(found, target=target)
        meta = {"digest": digest(arrays if n_classes is not None else arrays | _sizes(found)), **found.as_json()}
        meta["reading"] = reading.model_dump(mode="json")
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        try:
            for key, array in arrays.items():
                np.save(part / f"{key}.npy", array, allow_pickle=False)
            (part / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
            part.chmod(0o755)
            for path in part.iterdir():  # once the folder has its name, its content counts
                sync(path)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _sizes(found: Description) -> Arrays:
    """The description as an array, so that a digest covers it: a larger vocabulary makes a larger model."""
    text = json.dumps(replace(found, sample=replace(found.sample, layout=None)).as_json(), sort_keys=True)
    return {"description": np.frombuffer(text.encode(), dtype=np.uint8)}


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes; the kernel releases it if the process dies."""
    with path.open("w") as file:
        lock(file.fileno(), path, wait=True)
        yield


def digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns the sha256 over names, dtypes, shapes and bytes of arrays, in the order of their names."""
    sha = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        sha.update(f"{key}|{array.dtype.str}|{array.shape}|".encode())
        sha.update(array.data)
    return sha.hexdigest()


def file_digest(path: Path, cache_dir: Path) -> str:
    """Returns the sha256 of a file, cached so that not every process hashes it.

    It is cached by path, size, times and inode: the time of modification alone may be that of another content, as after
    `cp -p`, or where the clock was set back.
    """
    stat = path.stat()
    seen = [str(path.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    note = cache_dir / f".digest-{hashlib.sha256(seen[0].encode()).hexdigest()[:24]}.json"  # type: ignore[attr-defined]
    with suppress(OSError, ValueError, TypeError, LookupError):  # a damaged note counts as none
        remembered = json.loads(note.read_text(encoding="utf-8"))
        if remembered[:-1] == seen:
            return str(remembered[-1])
    with path.open("rb") as file:
        value = hashlib.file_digest(file, "sha256").hexdigest()
    write_file(note, json.dumps([*seen, value]).encode())
    return value


def folder_digest(folder: Path) -> str:
    """Returns the sha256 over a folder's path and the names, sizes and times of all files in it, links followed."""
    sha = hashlib.sha256(os.fsencode(folder.resolve()))
    seen = set[str]()
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _seen_before(os.path.join(where, name), seen))
        sha.update(os.fsencode(f"{where}|"))
        for name in sorted(files):
            path = os.path.join(where, name)
            stat = os.stat(path) if os.path.exists(path) else os.lstat(path)
            sha.update(os.fsencode(f"{name}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}|"))
    return sha.hexdigest()


def _seen_before(folder: str, seen: set[str]) -> bool:
    """Returns whether a folder was seen under this or another path, as links that go in circles are."""
    real, n = os.path.realpath(folder), len(seen)
    seen.add(real)
    return len(seen) == n
