"""Data sets are found, validated, unpacked once and memory-mapped."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch
from PIL import Image

from shared.core.errors import UnknownName
from shared.training.data import dataset, image_folders, sources, synthetic_digits
from shared.training.data.dataset import as_batch, load
from shared.training.data.sources import DataMalformed, DataUnavailable
from shared.training.description import Classes, Sample

Arrays = dict[str, np.ndarray[Any, Any]]


def small(**changes: Any) -> Arrays:
    """A tiny well-formed grey set of 10 classes; a change to None removes the key."""
    arrays: Arrays = {
        "train_x": np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5),
        "train_y": np.array([0, 1, 2, 3, 4, 9]),
        "test_x": np.zeros((2, 4, 5), np.uint8),
        "test_y": np.array([5, 6]),
    }
    return {key: value for key, value in {**arrays, **changes}.items() if value is not None}


def write(folder: Path, name: str = "mnist", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **small(**changes))  # type: ignore[arg-type]
    return folder


def test_npz_is_mapped_read_only_with_its_values(tmp_path: Path) -> None:
    got = load("mnist", data_dir=write(tmp_path / "d"), cache_dir=tmp_path / "c")
    assert isinstance(got.train_x, np.memmap)
    assert not got.train_x.flags.writeable
    np.testing.assert_array_equal(got.train_x, small()["train_x"])
    assert got.train_y.tolist() == [0, 1, 2, 3, 4, 9]
    assert got.train_y.dtype == np.int64
    assert (got.sample, got.target) == (Sample((1, 4, 5), images=True), Classes(10))
    assert got.train_group is None
    assert got.test_group is None


def test_writers_and_small_integer_labels_become_int64(tmp_path: Path) -> None:
    writers: dict[str, Any] = {"train_writer": np.array([7, 7, 8, 8, 8, 9], np.int32)}
    writers["test_writer"] = np.array([1, 2], np.int32)
    folder = write(tmp_path / "d", train_y=np.arange(6, dtype=np.uint8), **writers)
    got: Any = load("mnist", data_dir=folder, cache_dir=tmp_path / "c")
    assert (got.train_group.tolist(), got.test_group.tolist()) == ([7, 7, 8, 8, 8, 9], [1, 2])
    assert got.train_y.dtype == got.train_group.dtype == np.int64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_y": None}, "key train_y is missing"),
        ({"train_x": np.zeros((6, 4, 5), np.float32)}, "train_x has dtype float32, expected uint8"),
        ({"test_x": np.zeros((2, 20), np.uint8)}, r"test_x has shape \(2, 20\)"),
        ({"train_x": np.zeros((6, 3, 4, 5), np.uint8)}, r"train_x has shape \(6, 3, 4, 5\)"),
        ({"test_x": np.zeros((2, 5, 5), np.uint8)}, "train_x and test_x have images of different shapes"),
        ({"train_y": np.zeros(6)}, "train_y has dtype float64, expected int64"),
        ({"test_y": np.array([1])}, r"test_y has shape \(1,\), expected \(2,\)"),
        ({"test_y": np.array([1, 10])}, r"test_y has labels 1\.\.10, expected 0\.\.9"),
        ({"train_y": np.array([-1, 0, 0, 0, 0, 0])}, r"train_y has labels -1\.\.0"),
        ({"test_writer": np.array([1, 2, 3])}, r"test_writer has shape \(3,\)"),
        ({"test_x": np.zeros((0, 4, 5), np.uint8), "test_y": np.zeros(0, int)}, "test_x is empty"),
        ({"train_y": np.array([None] * 6, dtype=object)}, "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_key_is_named_and_leaves_no_file(tmp_path: Path, changes: dict[str, Any] | None, message: str) -> None:
    folder, cache = write(tmp_path / "d", **(changes or {})), tmp_path / "c"
    if changes is None:
        (folder / "mnist.npz").write_bytes(b"PK\x03\x04 no more")
    with pytest.raises(DataMalformed, match=message):
        load("mnist", data_dir=folder, cache_dir=cache)
    assert [entry for entry in cache.iterdir() if entry.is_dir()] == []


def test_a_header_of_too_many_bytes_allocates_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = io.BytesIO()
    claimed = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 64, 64, 3)}
    np.lib.format.write_array_header_1_0(head, claimed)
    with zipfile.ZipFile(tmp_path / "mnist.npz", "w") as archive:
        archive.writestr("train_x.npy", head.getvalue())
    with pytest.raises(DataMalformed, match="header of train_x says 12288000000000000 bytes, but it has only 128"):
        load("mnist", data_dir=tmp_path, cache_dir=tmp_path / "c")
    monkeypatch.setattr(np.lib.format, "read_array", Mock(side_effect=MemoryError("Unable to allocate 11.4 GiB")))
    with pytest.raises(DataMalformed, match=r"cannot be read: Unable to allocate 11\.4 GiB"):
        load("mnist", data_dir=write(tmp_path / "d"), cache_dir=tmp_path / "c")


def test_digest_follows_content_not_container(tmp_path: Path) -> None:
    first = load("mnist", data_dir=write(tmp_path / "a"), cache_dir=tmp_path / "c1")
    compressed = tmp_path / "b"
    compressed.mkdir()
    np.savez_compressed(compressed / "mnist.npz", **small())  # type: ignore[arg-type]
    again = load("mnist", data_dir=compressed, cache_dir=tmp_path / "c2")
    other = load("mnist", data_dir=write(tmp_path / "d", test_y=np.array([5, 7])), cache_dir=tmp_path / "c3")
    assert first.digest == again.digest != other.digest
    arrays = {key: getattr(first, key) for key in sources.REQUIRED}
    assert first.digest == dataset.digest(arrays)
    assert len(first.digest) == 64


def test_a_file_is_unpacked_again_only_when_it_changes(tmp_path: Path) -> None:
    folder, cache = write(tmp_path / "d"), tmp_path / "c"
    first = load("mnist", data_dir=folder, cache_dir=cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "file_digest", None)
        patch.setattr(sources, "read_npz", None)
        assert load("mnist", data_dir=folder, cache_dir=cache).digest == first.digest
    write(folder, train_y=np.zeros((6, 1), int))  # a column of labels
    os.utime(folder / "mnist.npz", ns=(1, 1))
    assert load("mnist", data_dir=folder, cache_dir=cache).train_y.tolist() == [0] * 6
    table, seen = tmp_path / "data" / "table.csv", []
    table.parent.mkdir()
    for text in ("a,b", "a;b"):  # of the same size and time, as `cp -p` or a clock that was set back leaves it
        table.write_text(text)
        os.utime(table, ns=(1, 1))
        seen.append((dataset.file_digest(table, tmp_path), dataset.folder_digest(table.parent)))
    assert seen[1][0] == hashlib.sha256(b"a;b").hexdigest() != seen[0][0]
    assert seen[0][1] != seen[1][1]


@pytest.mark.parametrize(("file", "content"), [("meta.json", ""), ("meta.json", "[]"), ("train_x.npy", "")])
def test_a_damaged_copy_is_named_and_a_damaged_note_is_none(tmp_path: Path, file: str, content: str) -> None:
    folder = write(tmp_path / "d")
    first = load("mnist", data_dir=folder, cache_dir=tmp_path / "c")
    for note in (tmp_path / "c").glob(".digest-*"):
        note.write_text("")
    assert load("mnist", data_dir=folder, cache_dir=tmp_path / "c").digest == first.digest
    copy = next((tmp_path / "c").glob("mnist-*/")) / file
    copy.write_text(content)
    with pytest.raises(DataMalformed, match=r"mnist-.*is damaged or of another version .*: remove that folder"):
        load("mnist", data_dir=folder, cache_dir=tmp_path / "c")
    shutil.rmtree(copy.parent)
    assert load("mnist", data_dir=folder, cache_dir=tmp_path / "c").digest == first.digest


def _digest_of(folders: tuple[Path, Path]) -> str:
    return load("mnist", data_dir=folders[0], cache_dir=folders[1]).digest


@pytest.mark.slow
def test_concurrent_processes_unpack_one_complete_copy(tmp_path: Path) -> None:
    folders = (write(tmp_path / "d"), tmp_path / "c")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        digests = pool.map(_digest_of, [folders] * 4, chunksize=1)
    assert len(set(digests)) == 1
    assert [entry.is_dir() for entry in folders[1].iterdir()].count(True) == 1


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published set has three classes, with two training images and one validation image each."""
    monkeypatch.setattr(image_folders, "PUBLISHED", image_folders.Counts(classes=3, train=2, test=1))


def published(folder: Path, side: int = 64) -> Path:
    """Tiny-ImageNet's layout, as small as `three` says."""
    root, names = folder / "tiny_imagenet", ["n03", "n01", "n02"]
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    for number, name in enumerate(names):
        (root / "train" / name / "images").mkdir(parents=True)
        for n in range(2):
            picture = Image.new("RGB", (side, side), (40 * number, 100 * n, 7))
            picture.save(root / "train" / name / "images" / f"{name}_{n}.JPEG", quality=95)
        Image.new("L", (side, side), 60 + number).save(root / "val" / "images" / f"val_{number}.JPEG", quality=95)
    lines = [f"val_{number}.JPEG\t{name}\t0\t0\t9\t9\n" for number, name in enumerate(names)]
    (root / "val" / "val_annotations.txt").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.usefixtures("three")
def test_tiny_imagenet_is_read_from_the_folder_as_published(tmp_path: Path) -> None:
    got = load("tiny_imagenet", data_dir=published(tmp_path / "d"), cache_dir=tmp_path / "c")
    assert (got.sample.shape, got.target.n_outputs, got.train_x.shape) == ((3, 64, 64), 200, (6, 64, 64, 3))
    assert got.train_y.tolist() == [0, 0, 1, 1, 2, 2]  # sorted names
    assert got.test_y.tolist() == [2, 0, 1]
    colours = [(40 * number, 100 * n, 7) for number in (1, 2, 0) for n in range(2)]
    assert np.abs(got.train_x[:, 30, 30].astype(int) - np.array(colours)).max() <= 3  # JPEG is lossy
    assert np.abs(got.test_x[:, 5, 5].astype(int) - np.array([[60], [61], [62]])).max() <= 1  # grey became colour
    shape = {"train_x": np.zeros((6, 64, 64, 3), np.uint8), "test_x": np.zeros((2, 64, 64, 3), np.uint8)}
    write(tmp_path / "d", "tiny_imagenet", **shape)  # an archive has precedence over a folder
    archive = load("tiny_imagenet", data_dir=tmp_path / "d", cache_dir=tmp_path / "c")
    assert archive.train_y.tolist() == [0, 1, 2, 3, 4, 9]


TRAIN, VAL = Path("tiny_imagenet", "train"), Path("tiny_imagenet", "val")
NOTES = VAL / "val_annotations.txt"
IMAGE, NAMES = TRAIN / "n01" / "images" / "n01_1.JPEG", TRAIN.parent / "wnids.txt"
Damage = Callable[[Path], object]


def huge(path: Path) -> None:
    """Changes a JPEG so that its header says 65,500 pixels a side."""
    head = path.read_bytes()
    sides = head.index(b"\xff\xc0") + 5
    path.write_bytes(head[:sides] + (65_500).to_bytes(2, "big") * 2 + head[sides + 4 :])


def as_png(path: Path) -> None:
    Image.new("RGB", (64, 64)).save(path, format="PNG")


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def text(content: str) -> Damage:
    return lambda path: path.write_text(content)


def line(more: bytes) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes() + more)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (IMAGE, huge, r"n01_1\.JPEG is not an image"),
        (IMAGE, as_png, r"n01_1\.JPEG is not an image .* cannot identify"),
        (IMAGE, shorten, r"n01_1\.JPEG is not an image .* truncated"),
        (IMAGE, pipe, r"train/n01/images/n01_1\.JPEG is missing or not a file"),
        (IMAGE, Path.unlink, "class n01 has 1 train images, expected 2"),
        (VAL / "images" / "val_2.JPEG", Path.unlink, r"val/images/val_2\.JPEG is missing"),
        (NOTES, pipe, r"val_annotations\.txt is missing or not a file"),
        (NOTES, text("val_0.JPEG\tn03\n"), "class n01 has 0 test images, expected 1"),
        (NOTES, line(b"val_0.JPEG n01\n"), "annotations.txt, line 4: expected a file name, a tab"),
        (NOTES, line(b"\n"), "annotations.txt, line 4: expected a file name"),
        (NOTES, line(b"val_0.JPEG\tn03\n"), r"line 4: val_0\.JPEG is listed twice"),
        (NOTES, line(b"val_9.JPEG\tn09\n"), r"line 4: val_9\.JPEG has class n09, which is not in"),
        (NOTES, line(b"../val_0.JPEG\tn03\n"), r"line 4: '\.\./val_0\.JPEG' is not a plain name"),
        (NOTES, line(b"\0\tn03\n"), "line 4: '.x00' is not a plain name"),
        (NOTES, line(b"\xff\tn03\n"), r"val_annotations\.txt is not text in UTF-8"),
        (NAMES, text("n01\nn02\n"), "has 2 classes, expected 3"),
        (NAMES, text("n01\nn02\n..\n"), r"wnids.txt: '\.\.' is not a plain"),
        (NAMES, Path.unlink, r"wnids\.txt is missing"),
    ],
)
def test_a_damaged_folder_is_refused_by_its_fault(tmp_path: Path, file: Path, damage: Damage, message: str) -> None:
    damage(published(tmp_path / "d") / file)
    with pytest.raises(DataMalformed, match=message):
        load("tiny_imagenet", data_dir=tmp_path / "d", cache_dir=tmp_path / "c")


def test_folders_of_other_sizes_or_numbers_are_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with pytest.raises(DataMalformed, match=r"wnids\.txt has 3 classes, expected 200"):
        load("tiny_imagenet", data_dir=published(tmp_path / "d"), cache_dir=tmp_path / "c")
    request.getfixturevalue("three")
    with pytest.raises(DataMalformed, match=r"n01_0\.JPEG .*: 32x32 pixels, not 64x64"):
        load("tiny_imagenet", data_dir=published(tmp_path / "e", side=32), cache_dir=tmp_path / "c")


@pytest.mark.usefixtures("three")
def test_another_or_a_changed_folder_is_unpacked_again(tmp_path: Path) -> None:
    def shades(folder: Path) -> list[int]:
        got = load("tiny_imagenet", data_dir=folder, cache_dir=tmp_path / "c")
        return [int(image[5, 5, 0]) for image in got.test_x]

    first, second = published(tmp_path / "a"), published(tmp_path / "b")
    assert shades(first) == [60, 61, 62]
    Image.new("L", (64, 64), 90).save(second / VAL / "images" / "val_0.JPEG", quality=95)
    assert shades(second) == [90, 61, 62]
    Image.new("L", (64, 64), 120).save(first / VAL / "images" / "val_2.JPEG", quality=95)
    assert shades(first) == [60, 61, 120]
    with pytest.raises(DataUnavailable):
        load("tiny_imagenet", data_dir=tmp_path, cache_dir=tmp_path / "c")


@pytest.mark.parametrize("name", ["mnist_m", "femnist", "tiny_imagenet"])
def test_a_data_set_without_download_says_which_file_to_provide(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable) as caught:
        load(name, data_dir=None, cache_dir=tmp_path)
    for text in (f"{name}.npz", "STRATA_DATA_DIR", "train_x, train_y, test_x, test_y"):
        assert text in caught.value.detail
    with pytest.raises(UnknownName, match=r"'minst'; did you mean 'mnist'\? known: breast_cancer, .*mnist"):
        sources.check_name("minst")


def test_a_failed_download_says_why_and_which_file_to_provide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = Mock(side_effect=OSError("no route to host"))
    monkeypatch.setitem(sources.DATASETS, "mnist", sources.DatasetSource(10, fails))
    with pytest.raises(DataUnavailable, match=r"no route to host.*mnist\.npz into .*mine"):
        load("mnist", data_dir=tmp_path / "mine", cache_dir=tmp_path / "c")
    assert not (tmp_path / "c" / "mnist-fetched").exists()


def test_digits_are_bundled_split_by_class_and_scaled(unpacked: Path) -> None:
    got = load("digits", data_dir=None, cache_dir=unpacked)
    assert (got.train_x.shape, got.test_x.shape) == ((1438, 8, 8), (359, 8, 8))
    assert (got.sample.shape, got.target.n_outputs) == ((1, 8, 8), 10)
    assert (got.train_x.min(), got.train_x.max()) == (0, 255)
    total = np.bincount(got.train_y) + np.bincount(got.test_y)
    np.testing.assert_array_equal(np.bincount(got.test_y), np.rint(total / 5))


@pytest.mark.parametrize("what", ["generator", "pillow", "matplotlib"])
def test_digits_of_another_version_are_made_again(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version has its own entry in the cache, so that machines with the same versions have the same images."""
    monkeypatch.setattr(synthetic_digits, "synth_digits", partial(synthetic_digits.synth_digits, n_train=20, n_test=10))
    before = load("synth_digits", data_dir=None, cache_dir=tmp_path).digest
    with monkeypatch.context() as later:
        later.setattr(synthetic_digits, "synth_digits", partial(synthetic_digits.synth_digits, seed=1))
        assert load("synth_digits", data_dir=None, cache_dir=tmp_path).digest == before
        if what == "generator":
            later.setattr(synthetic_digits, "VERSION", synthetic_digits.VERSION + 1)
        else:
            installed = metadata.version
            later.setattr(metadata, "version", lambda name: "0.1" if name == what else installed(name))
        assert load("synth_digits", data_dir=None, cache_dir=tmp_path).digest != before
    assert load("synth_digits", data_dir=None, cache_dir=tmp_path).digest == before


def _idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """The format of MNIST's files: magic, sizes, bytes."""
    header = np.array([0x0800 + array.ndim, *array.shape], ">u4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize(
    ("name", "kind", "parts", "axes", "labels"),
    [
        ("mnist", "MNIST", {"train": "train-{}", "test": "t10k-{}"}, (0, 1, 2), 10),
        ("emnist", "EMNIST", {part: f"emnist-byclass-{part}-{{}}" for part in ("train", "test")}, (0, 2, 1), 62),
    ],
)
def test_files_of_mnist_and_of_the_byclass_split_of_emnist_are_read_with_pictures_upright(
    tmp_path: Path, name: str, kind: str, parts: dict[str, str], axes: tuple[int, ...], labels: int
) -> None:
    arrays = small(train_y=np.array([labels - 1, 0, 1, 2, 3, 4]))
    for part, file in parts.items():
        path = tmp_path / "downloads" / kind / "raw" / file
        _idx(path.with_name(file.format("images-idx3-ubyte")), arrays[f"{part}_x"].transpose(axes))
        _idx(path.with_name(file.format("labels-idx1-ubyte")), arrays[f"{part}_y"])
    got = load(name, data_dir=tmp_path, cache_dir=tmp_path)
    np.testing.assert_array_equal(got.train_x, arrays["train_x"])
    assert got.target.n_outputs == labels
    assert (got.train_y[0], got.test_y.tolist()) == (labels - 1, [5, 6])


def test_svhn_is_requested_by_split_with_channels_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svhn = Mock(return_value=SimpleNamespace(data=np.zeros((2, 3, 4, 5), np.uint8), labels=np.array([1, 2])))
    fake = SimpleNamespace(datasets=SimpleNamespace(SVHN=svhn))
    monkeypatch.setattr("shared.training.torchvision_compat.torchvision", lambda: fake)
    got = load("svhn", data_dir=None, cache_dir=tmp_path)
    assert (got.train_x.shape, got.sample.shape) == ((2, 4, 5, 3), (3, 4, 5))
    options = {"root": str(tmp_path / "downloads"), "download": True}
    assert svhn.call_args_list == [call(split=split, **options) for split in ("train", "test")]


def test_a_batch_is_scaled_to_minus_one_to_one_in_torch_memory_with_channels_first(tmp_path: Path) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    np.save(tmp_path / "x.npy", colour)
    got = as_batch(np.load(tmp_path / "x.npy", mmap_mode="r")[1:])
    assert got.is_contiguous()
    assert got.data_ptr() % 64 == 0
    assert torch.equal(got, (torch.from_numpy(colour[1:]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5)
    grey = np.array([[[0, 255], [51, 102]]], np.uint8)
    assert as_batch(grey).flatten()[:2].tolist() == [-1.0, 1.0]
    assert torch.equal(as_batch(torch.from_numpy(grey)), as_batch(grey))


@pytest.mark.parametrize(("name", "n", "n_test", "side"), [("usps", 7291, 2007, 16), ("mnist", 60000, 10000, 28)])
def test_real_data_load_as_said(real_data: Path, unpacked: Path, name: str, n: int, n_test: int, side: int) -> None:
    got = load(name, data_dir=real_data, cache_dir=unpacked)
    assert (len(got.train_x), len(got.test_y), got.sample.shape) == (n, n_test, (1, side, side))
    assert got.target == Classes(10)
    if name == "mnist":
        assert got.train_group is not None
        assert len(np.unique(got.train_group)) == 539
