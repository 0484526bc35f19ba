"""The data sets that `strata doctor` finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.training.data.sources import DATASETS, DatasetSource
from strata.doctor import Check, data_sets


def test_doctor_knows_image_folders_and_missing_digit_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> dict[str, Check]:
        return {check.name: check for check in data_sets()}

    monkeypatch.setenv("STRATA_DATA_DIR", str(tmp_path))
    assert found()["data: tiny_imagenet"].found == "not found"
    assert found()["data: tiny_imagenet"].todo.endswith("or the published folder tiny_imagenet")
    folder = tmp_path / "tiny_imagenet"
    folder.mkdir()
    assert found()["data: tiny_imagenet"].state == "warn"
    assert found()["data: tiny_imagenet"].found == f"{folder} cannot be read: wnids.txt is missing or not a file"
    listed = {"train": [(folder / "a.JPEG", 0)] * 3, "test": [(folder / "b.JPEG", 0)]}
    monkeypatch.setitem(DATASETS, "tiny_imagenet", DatasetSource(200, None, lambda _: listed))
    assert found()["data: tiny_imagenet"] == Check("data: tiny_imagenet", "ok", "folder tiny_imagenet, 4 images")
    for name in ("mnist", "usps"):
        (tmp_path / f"{name}.npz").write_bytes(b"x")
    assert found()["data: digit_domains"].state == "warn"
    assert found()["data: digit_domains"].found == "not here: mnist_m, svhn"
    for name in ("svhn", "mnist_m"):
        (tmp_path / f"{name}.npz").write_bytes(b"x")
    assert found()["data: digit_domains"].state == "ok"


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "sklearn_docs", "vibration", "synth_digits"])
def test_what_needs_neither_file_nor_network_needs_no_advice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_DATA_DIR", str(tmp_path))
    found = {check.name: check for check in data_sets()}[f"data: {name}"]
    assert (found.state, found.todo) == ("ok", "")
