"""Specs as users write them: the experiment and its trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_run_spec, parse_spec
from shared.spec.experiment import ExperimentSpec
from shared.spec.run import RunSpec
from strata.runs.spec_check import checked
from strata.spec_files import read_spec
from strata.sweeps.grid import combinations_of


def test_trackers_are_not_part_of_the_experiment() -> None:
    plain, tracked = parse_run_spec({"seed": 4}), parse_run_spec({"seed": 4, "tracking": "mlflow"})
    assert (plain.tracking, tracked.tracking) == ((), ("mlflow",))
    assert type(tracked.experiment) is ExperimentSpec
    assert tracked.experiment == plain.experiment == parse_spec({"seed": 4})
    assert tracked.digest() == plain.digest() == parse_spec({"seed": 4}).digest()
    assert parse_run_spec(tracked.model_dump(mode="json")) == tracked


@pytest.mark.parametrize("wrong", ["wandb", ["mlflow", "mlflow"], 3, {"name": "mlflow"}])
def test_unknown_trackers_are_refused(wrong: object) -> None:
    with pytest.raises(BadInput) as refused:
        parse_run_spec({"tracking": wrong})
    assert str(refused.value.field).startswith("tracking")


def test_a_tier_takes_no_spec_with_trackers() -> None:
    with pytest.raises(BadInput, match="unknown field"):
        parse_spec({"tracking": ["mlflow"]})


def test_a_file_or_an_argument_names_trackers(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("seed: 2\ntracking: tensorboard\n")
    assert read_spec(path).tracking == ("tensorboard",)
    both = read_spec(path, ["tracking=[mlflow, tensorboard]"])
    assert (both.tracking, both.seed) == (("mlflow", "tensorboard"), 2)


def test_an_unavailable_tracker_is_named_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(BadInput, match="MLFLOW_TRACKING_URI is not set"):
        checked(parse_run_spec({"tracking": "mlflow"}))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.test")
    assert checked(parse_run_spec({"tracking": "mlflow"})).tracking == ("mlflow",)


def test_every_run_of_a_sweep_is_tracked_and_trackers_cannot_be_swept(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("tracking: mlflow\n")

    def finish(spec: RunSpec) -> RunSpec:
        return spec

    assert [one.spec.tracking for one in combinations_of(path, ["seed=1,2"], finish)] == [("mlflow",)] * 2
    with pytest.raises(BadInput, match="make the same spec"):
        combinations_of(path, ["tracking=mlflow,tensorboard"], finish)
