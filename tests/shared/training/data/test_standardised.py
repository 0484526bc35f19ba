"""Targets of numbers that are standardised: when, by what, and that figures keep the target's unit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shared.core.errors import StrataError
from shared.federation.experiment import Experiment
from shared.federation.plan import plan_of
from shared.federation.scoring import scoring_of
from shared.federation.spec_parser import parse_spec
from shared.training.data.dataset import Dataset
from shared.training.data.open_data import open_data
from shared.training.description import Classes, Numbers, Target
from shared.training.inference import TrainedModel
from shared.training.specs import DataSpec
from tests.shared.algorithms.layouts import ended, federation

X = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)


def opened(folder: Path, y: Any, **more: Any) -> Dataset:
    np.savez(folder / "numbers.npz", train_x=X[:40], train_y=y[:40], test_x=X[40:], test_y=y[40:])
    spec = DataSpec.model_validate({"file": "numbers.npz", **more})
    return open_data(spec, data_dir=folder, cache_dir=folder / "cache")


def prices(scale: float = 1.0, shift: float = 0.0, width: int = 1) -> Any:
    return shift + scale * np.random.default_rng(1).standard_normal((60, width))


def scale_of(target: Target) -> tuple[Any, Any]:
    assert isinstance(target, Numbers)
    return target.mean, target.std


@pytest.mark.parametrize(
    ("y", "wanted", "standardises"),
    [
        (prices(3, 2), None, False),
        (prices(3, 2), True, True),
        (prices(1e6, 2e6), None, True),
        (prices(1e6, 2e6), False, False),
        (prices(1, 50), None, True),
        (prices(1e-9), None, True),
        (np.zeros((60, 1)), None, False),
        (prices(width=2) * [1, 1e5], None, True),
    ],
)
def test_targets_far_from_one_are_standardised(y: Any, wanted: bool | None, standardises: bool, tmp_path: Path) -> None:
    found = opened(tmp_path, y, kind="numbers", **({} if wanted is None else {"standardise_target": wanted}))
    mean, std = scale_of(found.target)
    assert (mean is not None) is standardises
    assert any("targets are standardised" in note for note in found.reading.notes) is standardises
    if standardises:
        assert np.asarray(found.train_y).mean(0) == pytest.approx(np.zeros(y.shape[1]), abs=1e-6)
        assert np.asarray(found.train_y).std(0) == pytest.approx(np.ones(y.shape[1]), rel=1e-6)
        assert (mean, std) == (pytest.approx(y[:40].mean(0)), pytest.approx(y[:40].std(0)))
        assert found.target.in_unit(torch.tensor(found.test_y)).numpy() == pytest.approx(y[40:], rel=1e-5)  # type: ignore[union-attr]
    else:
        assert np.array_equal(found.train_y, y[:40].astype(np.float32))


def test_classes_are_not_standardised_and_differences_that_float32_would_lose_are_kept(tmp_path: Path) -> None:
    milliseconds_since_1970 = opened(tmp_path, 1.7e9 + prices(1e-3))
    assert len(np.unique(milliseconds_since_1970.train_y)) == 40
    y = np.arange(60) % 3
    assert opened(tmp_path, y).target == Classes(3)
    with pytest.raises(StrataError, match="standardise_target is for numbers, these targets are classes"):
        opened(tmp_path, y, standardise_target=True)


def test_metrics_and_predictions_are_in_the_unit_of_the_target(tmp_path: Path) -> None:
    y = prices(1e6, 2e6)
    data = opened(tmp_path, y)
    spec = parse_spec({"data": {"file": "numbers.npz"}, "metrics": ["mae", "rmse"]})
    scoring, outputs = scoring_of(spec, data.target), torch.zeros(20, 1)  # they predict the training mean
    states = scoring.states(outputs, torch.tensor(data.test_y))
    errors = y[40:] - y[:40].mean()
    found = {label: scoring.further[label].value(state) for label, state in states.items()}
    assert found == pytest.approx({"mae": np.abs(errors).mean(), "rmse": np.sqrt((errors**2).mean())}, rel=1e-6)
    about: Any = SimpleNamespace(description=SimpleNamespace(target=data.target))
    (mean,), (std,) = scale_of(data.target)
    for outputs in (torch.tensor([[0.0], [1.0]]), torch.tensor([0.0, 1.0])):
        assert TrainedModel(about, {}).finished(outputs).tolist() == [[mean], [pytest.approx(mean + std)]]


@pytest.mark.slow
async def test_house_prices_train_at_a_usual_rate_and_errors_are_in_their_unit(tmp_path: Path) -> None:
    """Of a table, through three tiers; least squares have an error of 1e5."""
    rng, lines = np.random.default_rng(0), ["area,rooms,price"]
    for _ in range(500):
        area, rooms = rng.uniform(40, 400), rng.integers(1, 9)
        lines.append(f"{area:.1f},{rooms},{9000 * area + 150_000 * rooms + rng.normal(0, 1e5):.0f}")
    (tmp_path / "houses.csv").write_text("\n".join(lines))
    spec: dict[str, Any] = {"data": {"file": "houses.csv", "target": "price"}, "metrics": ["rmse", "mae"], "lr": 0.05}
    spec |= {"num_devices": 4, "num_edges": 2, "num_rounds": 10, "local_epochs": 2, "batch_size": 16}
    async with federation(tmp_path, agent_devices=(2, 2), n_edges=2, common={"data_dir": tmp_path}) as fed:
        done = await ended(fed, await fed.submit(spec))
    assert 8e4 < (done.info.score or 0) < 1.5e5
    assert 6e4 < done.info.scores["mae"] < 1.2e5
    target = done.experiment.data.reading.target
    assert target is not None
    assert target.mean == pytest.approx(9000 * 220 + 150_000 * 4.5, rel=0.1)
    assert any("targets are standardised (mean " in line for line in plan_of(done.experiment))
    assert isinstance(done.experiment, Experiment)
