"""Data sets in folders of images."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from shared.training.data.sources import DataMalformed
from shared.training.description import Classes, Sample
from tests.shared.training.data.test_files import opened


def picture(path: Path, value: int, size: tuple[int, int] = (6, 4), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 0)).save(path)


def test_a_folder_of_images_has_its_classes_by_name(tmp_path: Path) -> None:
    for label, value in (("cat", 10), ("ant", 20)):
        for number in range(10):
            picture(tmp_path / "pets" / label / f"{number}.png", value)
    got = opened(tmp_path, file="pets")
    assert (got.sample, got.target) == (Sample((1, 4, 6), images=True), Classes(2))
    assert (len(got.train_y), len(got.test_y)) == (16, 4)
    assert {(int(y), int(x[0, 0])) for x, y in zip(got.train_x, got.train_y, strict=True)} == {(0, 20), (1, 10)}


def test_a_folder_may_have_its_own_test_set_colours_and_a_size(tmp_path: Path) -> None:
    for part, n in (("train", 3), ("test", 1)):
        for label in ("a", "b"):
            for number in range(n):
                picture(tmp_path / "set" / part / label / f"{number}.jpg", 200, (6 + number, 4), "RGB")
    with pytest.raises(DataMalformed, match="images of 3 sizes"):
        opened(tmp_path, file="set")
    got = opened(tmp_path, file="set", size=8)
    assert (got.sample.shape, got.train_y.tolist(), got.test_y.tolist()) == ((3, 8, 8), [0, 0, 0, 1, 1, 1], [0, 1])


def test_a_damaged_image_and_a_folder_without_classes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataMalformed, match="images of 0 classes"):
        opened(tmp_path, file="none")
    picture(tmp_path / "set" / "a" / "1.png", 1)
    (tmp_path / "set" / "b").mkdir()
    (tmp_path / "set" / "b" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataMalformed, match=r"b/1\.png is not an image"):
        opened(tmp_path, file="set")
