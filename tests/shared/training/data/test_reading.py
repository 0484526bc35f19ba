"""How a data set was read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from shared.training.data.dataset import open_unpacked, unpack_once
from shared.training.data.reading import Column, Read, Reading, listed
from shared.training.data.sources import REQUIRED

ARRAYS = {key: np.ones((2, 1)) if key.endswith("x") else np.array([0, 1]) for key in REQUIRED}


def test_a_reading_is_kept_beside_the_arrays_and_no_part_of_their_digest(tmp_path: Path) -> None:
    told = Reading(classes=("ill", "well"), groups=("Genf",), notes=("3 rows were left out",))
    unpack_once(tmp_path / "told", lambda: Read(ARRAYS, told), None)
    unpack_once(tmp_path / "plain", lambda: ARRAYS, None)
    got, plain = (open_unpacked("mine", tmp_path / name, None) for name in ("told", "plain"))
    assert (got.reading, plain.reading) == (told, Reading())
    assert got.digest == plain.digest
    meta = json.loads((tmp_path / "plain" / "meta.json").read_text())
    del meta["reading"]  # as of a version without readings
    (tmp_path / "plain" / "meta.json").write_text(json.dumps(meta))
    assert open_unpacked("mine", tmp_path / "plain", None).reading == Reading()


def test_a_reading_says_in_words_what_it_read() -> None:
    columns = (
        Column(name="bmi", kind="number", unit="kg", mean=26.0, std=4.0),
        Column(name="bmi", kind="indicator"),
        Column(name="ward", kind="categories", categories=tuple(f"w{i}" for i in range(10))),
    )
    read = Reading(columns=columns, target=Column(name="price", kind="number"), notes=("id was left out",))
    assert read.lines() == (
        "inputs: bmi number in kg, bmi missing or not, ward 10 categories (w0, w1, w2, w3, w4, w5, w6, w7 and 2 more)",
        "target: price number",
        "id was left out",
    )
    assert Reading().lines() == ()
    assert listed(["a", "b"]) == "a, b"
