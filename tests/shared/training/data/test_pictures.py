"""Data sets in folders of images."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shared.training.data.dataset import Dataset
from shared.training.data.open_data import open_data
from shared.training.data.sources import DataMalformed
from shared.training.data.unseen import unseen
from shared.training.description import Classes, Sample
from shared.training.preprocessing import ModuleDesign, Preprocessing
from shared.training.specs import DataSpec
from tests.shared.training.data.test_files import opened


def saved(path: Path, pixels: Any, **options: Any) -> None:
    """Saves pixels, or an image, as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    made.save(path, **options)


def two_classes(root: Path, a: Any, b: Any, ending: str = "png", **options: Any) -> None:
    """Saves ten images of each of the classes `a` and `b`."""
    for label, pixels in (("a", a), ("b", b)):
        for number in range(10):
            saved(root / label / f"{number}.{ending}", pixels, **options)


def shade(value: int, dtype: Any = np.uint8, *channels: int) -> Any:
    """Eight by eight pixels of one value."""
    return np.full((8, 8, *channels), value, dtype)


def by_class(data: Dataset) -> list[npt.NDArray[np.uint8]]:
    """Returns the first training image of each class."""
    return [data.train_x[data.train_y == label][0] for label in range(len(data.reading.classes))]


def test_a_folder_of_images_has_its_classes_by_name(tmp_path: Path) -> None:
    two_classes(tmp_path / "pets", np.full((4, 6), 20, np.uint8), np.full((4, 6), 10, np.uint8))
    (tmp_path / "pets" / "b").rename(tmp_path / "pets" / "Cat")
    got = opened(tmp_path, file="pets")
    assert (got.sample, got.target) == (Sample((1, 4, 6), images=True), Classes(2))
    assert (len(got.train_y), len(got.test_y)) == (16, 4)
    assert (got.reading.classes, got.reading.notes) == (("Cat", "a"), ())
    assert [set(x.flat) for x in by_class(got)] == [{10}, {20}]


def test_a_folder_may_have_its_own_test_set_colours_and_a_size(tmp_path: Path) -> None:
    for part, n in (("Training", 3), ("test", 1)):
        for label in ("a", "b"):
            for number in range(n):
                saved(tmp_path / "set" / part / label / f"{number}.JPG", Image.new("RGB", (6 + number, 4)))
    with pytest.raises(DataMalformed, match="images of 3 sizes"):
        opened(tmp_path, file="set")
    got = opened(tmp_path, file="set", size=8)
    assert (got.sample.shape, got.train_y.tolist(), got.test_y.tolist()) == ((3, 8, 8), [0, 0, 0, 1, 1, 1], [0, 1])


# ---- files


def test_images_of_all_usual_formats_are_read_by_their_content(tmp_path: Path) -> None:
    names = {"a": ["1.png", "2.TIF", "no_ending"], "b": ["1.bmp", "2.webp", "3.gif"], "c": ["1.ppm", "deep/2.tiff"]}
    formats = {"no_ending": "PNG", "2.webp": "WEBP"}
    for number, (label, files) in enumerate(names.items()):
        for file in files:
            options = {"lossless": True} if file == "2.webp" else {}
            colours = Image.fromarray(shade(60 * number)).convert("RGB")
            saved(tmp_path / "mixed" / label / file, colours, format=formats.get(file), **options)
    got = opened(tmp_path, file="mixed")
    found = sorted(zip([*got.train_y, *got.test_y], [*got.train_x[:, 0, 0, 0], *got.test_x[:, 0, 0, 0]], strict=True))
    assert found == [(0, 0)] * 3 + [(1, 60)] * 3 + [(2, 120)] * 2
    assert got.reading.notes == ()


def test_what_is_not_read_is_counted(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for part in ("train", "test"):
        two_classes(root / part, shade(0), shade(1))
    for name in ("list.txt", "val/a/0.png", "train/a/._0.png", "train/a/Thumbs.db", "train/b/.cache/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"\0\5\x16\7")
    (root / "train" / "void").mkdir()
    saved(root / "test" / "d" / "0.png", shade(1))
    saved(root / "train" / "c" / "0.png", shade(1))
    got = opened(tmp_path, file="set")
    assert got.reading.classes == ("a", "b", "c", "d")
    assert got.reading.notes == (
        "5 files were not read, being hidden, no image, or in no class's folder: "
        "list.txt, val/ (1 file), train/a/._0.png, train/a/Thumbs.db, train/b/.cache/1.png",
        "without images, hence no class: train/void",
        "classes without test images: c",
        "classes with test samples and no training sample: d",
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b/1.png", b"no image", r"b/1\.png is not an image"),
        ("b/1.heic", b"", r"b/1\.heic is in a format that is not read; save it as PNG"),
        ("b/scan.nii.gz", b"", r"b/scan\.nii\.gz is in a format that is not read"),
        ("b/1.png", None, r"b/1\.png is no file, or a link that leads nowhere"),
    ],
)
def test_an_unreadable_image_is_refused_by_name(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    two_classes(tmp_path / "set", shade(0), shade(1))
    path = tmp_path / "set" / name
    path.unlink(missing_ok=True)
    if content is None:
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.write_bytes(content)
    with pytest.raises(DataMalformed, match=message):
        opened(tmp_path, file="set")


def test_damaged_animated_and_inverted_images_are_refused_by_their_file(tmp_path: Path) -> None:
    grey = shade(0)
    frames = [Image.fromarray(shade(value)) for value in (0, 90)]
    for name in ("gif", "tif"):
        two_classes(tmp_path / name, frames[0], frames[0], name, save_all=True, append_images=frames[1:])
        with pytest.raises(DataMalformed, match=rf"[ab]/0\.{name} has 2 frames or pages"):
            opened(tmp_path, file=name)
    two_classes(tmp_path / "cut", grey, grey)
    whole = (tmp_path / "cut" / "b" / "3.png").read_bytes()
    (tmp_path / "cut" / "b" / "3.png").write_bytes(whole[:-25])
    with pytest.raises(DataMalformed, match=r"b/3\.png is damaged"):
        opened(tmp_path, file="cut")
    two_classes(tmp_path / "white", grey.astype(np.uint16), grey.astype(np.uint16) + 40_000, "tif", tiffinfo={262: 0})
    with pytest.raises(DataMalformed, match=r"a/0\.tif has white as its least value"):
        opened(tmp_path, file="white")
    two_classes(tmp_path / "scans", shade(1, np.float32), shade(1, np.float32) * np.nan, ending="tif")
    with pytest.raises(DataMalformed, match=r"b/0\.tif holds NaN or infinity"):
        opened(tmp_path, file="scans")


def test_classes_that_the_folders_leave_open_are_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataMalformed, match="images of 0 classes"):
        opened(tmp_path, file="none")
    grey = shade(0)
    for part in ("train", "val"):
        two_classes(tmp_path / "set" / part, grey, grey)
    with pytest.raises(DataMalformed, match="images in train/a and val/a: is the class a or train"):
        opened(tmp_path, file="set")
    two_classes(tmp_path / "set" / "Train", grey, grey)
    two_classes(tmp_path / "set" / "test", grey, grey)
    with pytest.raises(DataMalformed, match="Train and train are both folders of train images"):
        opened(tmp_path, file="set")


def test_a_linked_folder_is_read_and_read_again_when_it_changes(tmp_path: Path) -> None:
    two_classes(tmp_path / "real", shade(0), shade(1))
    (tmp_path / "set").mkdir()
    for label in ("a", "b"):
        os.symlink(tmp_path / "real" / label, tmp_path / "set" / label)
    os.symlink(tmp_path / "set", tmp_path / "real" / "a" / "circle")
    got = opened(tmp_path, file="set")
    assert len(got.train_x) == 16
    assert got.reading.notes[0].endswith("in no class's folder: a/circle")
    saved(tmp_path / "real" / "a" / "0.png", shade(9))
    assert opened(tmp_path, file="set").digest != got.digest


# ---- pixels


def test_sixteen_bits_are_scaled_by_all_of_them(tmp_path: Path) -> None:
    two_classes(tmp_path / "set", shade(514, np.uint16), shade(65_535, np.uint16))
    got = opened(tmp_path, file="set")
    assert got.sample == Sample((1, 8, 8), images=True)
    assert [set(x.flat) for x in by_class(got)] == [{2}, {255}]
    two_classes(tmp_path / "eight", shade(0), shade(1))
    with pytest.raises(DataMalformed, match="eight has no grey images of more than eight bits"):
        opened(tmp_path, file="eight", value_range=(0, 4095))
    assert got.reading.notes == ("20 images of more than eight bits, scaled to eight: 0 is black, 65535 white",)


@pytest.mark.parametrize(("dtype", "ending"), [(np.uint16, "png"), (np.int32, "tif"), (np.float32, "tif")])
def test_the_range_of_fewer_or_other_bits_is_asked(tmp_path: Path, dtype: Any, ending: str) -> None:
    two_classes(tmp_path / "set", shade(819, dtype), shade(4095, dtype), ending)
    saved(tmp_path / "set" / "b" / f"9.{ending}", shade(5000, dtype))
    saved(tmp_path / "set" / "b" / "8.bmp", shade(255))  # eight bits stay as they are
    with pytest.raises(DataMalformed, match=r"set has 20 images .* values 819 to 5000: data\.value_range"):
        opened(tmp_path, file="set")
    got = opened(tmp_path, file="set", value_range=(0, 4095))
    assert [set(x.flat) for x in by_class(got)] == [{51}, {255}]
    assert got.reading.notes == (
        "20 images of more than eight bits, scaled to eight: 0 is black, 4095 white",
        "64 pixels beyond 0 to 4095 were clipped",
    )


def sixteen_bit_colours(path: Path, value: int) -> None:
    """Writes a PNG of three colours of 16 bits, which Pillow reads but does not write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    lines = (b"\0" + struct.pack(">H", value) * 3 * 8) * 8
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


def test_sixteen_bits_a_colour_keep_the_upper_eight_and_fewer_are_refused(tmp_path: Path) -> None:
    for label, value in (("a", 300), ("b", 4095)):
        for number in range(10):
            sixteen_bit_colours(tmp_path / "set" / label / f"{number}.png", value)
    with pytest.raises(DataMalformed, match="20 images of 16 bits a colour whose values stay below half"):
        opened(tmp_path, file="set")
    sixteen_bit_colours(tmp_path / "set" / "b" / "0.png", 51_400)
    got = opened(tmp_path, file="set")
    assert got.sample.shape == (3, 8, 8)
    assert max(got.train_x.max(), got.test_x.max()) == 200
    assert got.reading.notes == ("20 images of 16 bits a colour, of which the upper eight are kept",)


def test_transparent_pixels_show_the_background_and_not_their_hidden_colour(tmp_path: Path) -> None:
    clear = np.full((8, 8, 4), (200, 30, 40, 255), np.uint8)
    opaque = clear.copy()
    clear[0] = (77, 77, 77, 0)
    two_classes(tmp_path / "set", opaque, clear)
    for background, value in (("white", 255), ("black", 0)):
        got = opened(tmp_path, file="set", background=background)
        a, b = by_class(got)
        assert set(map(tuple, a.reshape(-1, 3))) == {(200, 30, 40)}
        assert (set(b[0].flat), tuple(b[1, 0])) == ({value}, (200, 30, 40))
        assert got.reading.notes == (f"10 images with transparent pixels, laid on {background} (data.background)",)
    assert opened(tmp_path, file="set").digest == opened(tmp_path, file="set", background="white").digest


def test_palettes_grey_and_print_colours_are_read_as_colours(tmp_path: Path) -> None:
    red = Image.new("RGB", (8, 8), (250, 0, 0))
    for name, made, ending, value in (
        ("grey", shade(7), "png", (7, 7, 7)),
        ("palette", red.quantize(4), "png", (250, 0, 0)),
        ("alpha", Image.new("LA", (8, 8), (90, 255)), "png", (90, 90, 90)),
        ("print", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "tif", (255, 0, 0)),
    ):
        two_classes(tmp_path / name, made, red, ending)
        got = opened(tmp_path, file=name)
        assert set(map(tuple, by_class(got)[0].reshape(-1, 3))) == {value}
        told = f"10 grey images are read in three colours, as 10 others, such as b/0.{ending}"
        assert got.reading.notes == ((told,) if name == "grey" else ())


def test_images_are_turned_upright_as_exif_says(tmp_path: Path) -> None:
    stripes = np.zeros((8, 16), np.uint8)
    stripes[:2] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    two_classes(tmp_path / "set", stripes.T.copy(), stripes.T.copy(), quality=95)
    for number in range(10):
        saved(tmp_path / "set" / "b" / f"{number}.png", stripes, exif=exif)
    got = opened(tmp_path, file="set")
    assert got.sample.shape == (1, 16, 8)
    a, b = by_class(got)
    assert (a[0].tolist(), b[0].tolist()) == ([255, 255, *[0] * 6], [*[0] * 6, 255, 255])
    assert got.reading.notes == ("10 images turned upright, as their EXIF orientation says",)


def test_new_images_of_more_bits_are_scaled_as_those_of_the_training_or_asked_about(tmp_path: Path) -> None:
    dark = np.full((4, 6), 400, np.uint16)
    saved(tmp_path / "new" / "dark.png", dark)
    saved(tmp_path / "new" / ".thumbs" / "x.png", np.zeros((9, 9), np.uint8))
    two_classes(tmp_path / "deep", np.full((4, 6), 40_000, np.uint16), dark)
    two_classes(tmp_path / "plain", np.zeros((4, 6), np.uint8), np.full((4, 6), 9, np.uint8))

    def new_of(name: str) -> Any:
        spec = DataSpec.model_validate({"file": name})
        data = open_data(spec, data_dir=tmp_path, cache_dir=tmp_path / "cache")
        kept = Preprocessing.of(spec, data, ModuleDesign(name="cnn_mnist"), None)
        return unseen(tmp_path / "new", Preprocessing.of_json(kept.to_json()))

    assert (new_of("deep").x == round(400 / 65_535 * 255)).all()
    assert new_of("deep").files == ("dark.png",)
    asked = r"new has 1 images of more than eight bits .* 400 to 400: data\.value_range"
    with pytest.raises(DataMalformed, match=asked):
        new_of("plain")
