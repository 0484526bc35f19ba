"""Rows of a new table for a trained model: read as the training table was, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shared.core.errors import StrataError
from shared.training.data.open_data import open_data
from shared.training.data.sources import DataMalformed
from shared.training.data.unseen import unseen
from shared.training.preprocessing import ModuleDesign, Preprocessing
from shared.training.specs import DataSpec

N = 60


def trained(folder: Path, text: str, **spec: Any) -> Preprocessing:
    """Returns what is kept of a training table of the columns x, c and y."""
    (folder / "t.csv").write_text(text, encoding="utf-8")
    said = DataSpec.model_validate({"file": "t.csv", "target": "y", **spec})
    data = open_data(said, data_dir=folder, cache_dir=folder / "cache")
    return Preprocessing.of_json(Preprocessing.of(said, data, ModuleDesign(name="mlp"), None).to_json())


def german(folder: Path, **spec: Any) -> Preprocessing:
    rows = [f"{n % 7},{n % 5}25;{('TRUE', 'FALSE')[n % 2]};{'ab'[n % 2]}" for n in range(N)]
    return trained(folder, "x;c;y\n" + "\n".join(rows) + "\n", **spec)


def numbers(source: Any, kept: Preprocessing) -> list[float]:
    """The column x in its own unit."""
    x, column = unseen(source, kept).x[:, 0], kept.reading.columns[0]
    mean, std = (1, 0) if kept.mean is None else (kept.mean[0], kept.std[0])
    assert (mean, std) == (column.mean, column.std)  # float32 holds these numbers as they are
    return [float(value) for value in x]


@pytest.mark.parametrize("spec", [{}, {"csv": {"delimiter": ";", "decimal": ","}}])
def test_numbers_of_a_frame_stay_whatever_the_training_table_wrote(tmp_path: Path, spec: dict[str, Any]) -> None:
    kept = german(tmp_path, **spec)
    assert (kept.reading.decimal, kept.reading.thousands) == (",", None)
    frame = pd.DataFrame({"x": [1.234, 2.5, 1e-7, 3], "c": [True, False, True, True]})
    assert numbers(frame, kept) == [float(np.float32(value)) for value in (1.234, 2.5, 1e-7, 3)]
    new = tmp_path / "new.csv"
    new.write_text("x;c\n1,234;TRUE\n", encoding="utf-8")
    assert numbers(new, kept) == [float(np.float32(1.234))], "what may be read in two ways is read as in the training"
    if not spec:  # then clearly another notation is read, too
        new.write_text("x,c\n1.5,TRUE\n2.25,FALSE\n", encoding="utf-8")
        assert numbers(new, kept) == [1.5, 2.25]


def test_a_category_that_rounds_to_a_known_one_is_unknown(tmp_path: Path) -> None:
    rows = [f"{n % 7}.5,{2**53 + 2 * (n % 2)},{'ab'[n % 2]}" for n in range(N)]
    kept = trained(tmp_path, "x,c,y\n" + "\n".join(rows) + "\n", columns={"c": "categories"})
    found = unseen({"x": [1.5], "c": [f"{2**53}.0"]}, kept)
    assert found.x[0, 1:].tolist() == [1, 0]
    with pytest.raises(DataMalformed, match=f"column c is '{2**53 + 1}'; the categories of the training table are"):
        unseen({"x": [1.5], "c": [2**53 + 1]}, kept)


def test_an_array_holds_the_numbers_of_a_table_as_they_are(tmp_path: Path) -> None:
    times = 1_700_000_000 + np.random.default_rng(0).integers(0, 3000, N)
    rows = [f"{times[n]},{n % 9}.5,{'ab'[n % 2]}" for n in range(N)]
    kept = trained(tmp_path, "x,c,y\n" + "\n".join(rows) + "\n")
    x, c = [1_700_000_100, 1_700_000_101], [2.5, 3.5]
    expected = unseen({"x": x, "c": c}, kept).x
    assert expected[0, 0] != expected[1, 0]
    assert np.array_equal(unseen(np.column_stack([x, c]), kept).x, expected)
    with pytest.raises(StrataError, match=r"the array has shape \(2, 5\), a sample of the model \(2,\)"):
        unseen(np.ones((2, 5)), kept)
