"""The plan of a run says what its data and its model were taken to be; it is part of the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.federation.experiment import Experiment
from shared.federation.plan import plan_of
from shared.spec.experiment import ExperimentSpec
from shared.training.data.open_data import open_data
from shared.training.specs import DataSpec
from tests.data_cache import data_cache
from tests.federation import Federation, small_spec

DIGITS = "data digits: {} training and {} test samples; each is an image of 8 x 8 pixels, 1 channel; "
TABLE = "data breast_cancer: 457 training and 112 test samples; each is 30 numbers; "


@pytest.mark.parametrize(
    ("data", "model", "lines"),
    [
        (
            "digits",
            "mlp",
            (
                f"{DIGITS.format('1,438', 359)}target: one of 10 classes",
                "model mlp: 4,810 parameters, outputs (batch, 10)",
            ),
        ),
        (
            "breast_cancer",
            "mlp",
            (f"{TABLE}target: one of 2 classes", "model mlp: 2,114 parameters, outputs (batch, 2)"),
        ),
    ],
)
def test_it_says_what_a_sample_and_a_target_are_and_the_size_of_the_model(
    data: str, model: str, lines: tuple[str, ...]
) -> None:
    spec = ExperimentSpec.model_validate({"data": data, "model": {"name": model}, "num_devices": 2, "num_edges": 1})
    opened = open_data(DataSpec(name=data), data_dir=None, cache_dir=data_cache())
    found = plan_of(Experiment(spec.resolved(n_devices=2, n_edges=1), opened))
    assert (found[0], found[-1]) == lines


def test_a_name_with_a_line_break_does_not_break_a_line(tmp_path: Path) -> None:
    rows = [f'{n % 7}.5,"{("a", "b")[n % 2]}\nline","c{n % 2}"' for n in range(60)]
    (tmp_path / "t.csv").write_text("x,kind,state\n" + "\n".join(rows) + "\n", encoding="utf-8")
    spec = ExperimentSpec.model_validate(
        {"data": {"file": "t.csv", "target": "state"}, "model": {"name": "mlp"}, "num_devices": 2, "num_edges": 1}
    )
    opened = open_data(spec.data, data_dir=tmp_path, cache_dir=tmp_path / "cache")
    found = plan_of(Experiment(spec.resolved(n_devices=2, n_edges=1), opened))
    assert not [line for line in found if "\n" in line]
    assert r"kind 2 categories (a\nline, b\nline)" in found[1]


async def test_the_record_of_a_run_has_its_plan(tmp_path: Path) -> None:
    async with Federation(tmp_path) as fed:
        info = await fed.run(small_spec(num_rounds=1))
    assert info.plan[0].startswith(DIGITS.format("300 of 1,438", "100 of 359"))
