"""How much each client counts in the mean, through three tiers: against the mean of clients' own steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from shared.core.errors import BadInput
from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.federation.population import Seat
from shared.federation.spec_parser import parse_spec
from shared.training import models
from shared.training.data.open_data import open_data
from tests.shared.algorithms.layouts import ended, federation

SIZES = [5, 20, 100]
SPEC: dict[str, Any] = {
    "data": "three.npz", "partition": "by_writer", "model": "mlp",
    "num_devices": 3, "num_edges": 2, "num_rounds": 1, "batch_size": 1000, "lr": 0.5,
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Returns a folder with three groups of different sizes, of which the first has the opposite concept."""
    rng, groups, folder = np.random.default_rng(0), np.repeat(np.arange(3), SIZES), tmp_path / "data"
    folder.mkdir()
    y = rng.integers(0, 2, len(groups))
    x = (rng.normal(size=(len(groups), 4)) + y[:, None] * (1 - 2 * (groups == 0))[:, None]).astype(np.float32)
    parts = {"train_x": x, "train_y": y, "train_group": groups, "test_x": x, "test_y": y, "test_group": groups}
    np.savez(folder / "three.npz", allow_pickle=False, **parts)
    return folder


def step(experiment: Experiment, start: TensorMap, seat: Seat) -> TensorMap:
    """Returns the model of a client after one step."""
    model, held = experiment._first_model(), experiment.data
    models.write_state(model, start)
    y = torch.from_numpy(np.array(held.train_y[seat.train]))
    functional.cross_entropy(model(held.encode(held.train_x[seat.train])), y).backward()
    return {name: (p - 0.5 * p.grad).detach() for name, p in model.named_parameters() if p.grad is not None}


def mean_of(parts: Sequence[tuple[float, TensorMap]]) -> TensorMap:
    total = sum(weight for weight, _ in parts)
    stacked = {name: torch.stack([weight / total * part[name] for weight, part in parts]) for name in parts[0][1]}
    return {name: tensors.sum(0) for name, tensors in stacked.items()}


@pytest.mark.parametrize(
    ("spec", "weights"),
    [
        ({"edge_upload": "mean"}, SIZES),
        ({"weights": "uniform", "edge_upload": "mean"}, [1, 1, 1]),
        ({"weights": "group"}, [1, 1, 1]),
        ({"weights": "uniform", "algorithm": {"name": "fedprox", "params": {"mu": 0.0}}}, [1, 1, 1]),
    ],
)
async def test_clients_count_as_the_spec_says(
    tmp_path: Path, data: Path, spec: dict[str, Any], weights: list[int]
) -> None:
    async with federation(tmp_path, agent_devices=(2, 1), n_edges=2, common={"data_dir": data}) as fed:
        run = await ended(fed, await fed.submit({**SPEC, **spec}))
    first, seats = run.experiment.initial, run.experiment.population.seats
    expected = mean_of([(weights[SIZES.index(seat.n_train)], step(run.experiment, first, seat)) for seat in seats])
    for name, tensor in run.model.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0)


async def test_models_of_edges_count_by_their_devices(tmp_path: Path, data: Path) -> None:
    async with federation(tmp_path, agent_devices=(2, 1), n_edges=2, common={"data_dir": data}) as fed:
        run = await ended(fed, await fed.submit({**SPEC, "weights": "uniform", "edge_rounds": 2}))
    experiment, seats = run.experiment, run.experiment.population.seats
    of_edges = []
    for edge in (0, 1):
        own, model = [seat for seat in seats if seat.home_edge == edge], experiment.initial
        for _ in range(2):
            model = mean_of([(1, step(experiment, model, seat)) for seat in own])
        of_edges.append((float(len(own)), model))
    assert sorted(weight for weight, _ in of_edges) == [1, 2]
    expected = mean_of(of_edges)
    for name, tensor in run.model.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"weights": "uniform", "schedule": "equal"}, "weights: uniform needs schedule: own_data"),
        ({"weights": "uniform", "client": "edge"}, "weights: uniform needs schedule: own_data and client: device"),
        (
            {"weights": "uniform", "late": "next_round", "round_deadline_s": 1.0},
            "weights: uniform needs staleness_discount: 1",
        ),
        ({"weights": "uniform", "sync": {"edges": {"mode": "asynchronous"}}}, "needs tiers that wait for all"),
        ({"weights": "uniform", "algorithm": "feddc"}, "feddc needs weights: samples, not uniform"),
        ({"weights": "group", "partition": "iid"}, "device 0 has 3 groups"),
        ({"weights": "group", "num_devices": 2}, "device . has 2 groups"),
        ({"weights": "group", "data": "digits"}, "weights: group needs groups"),
    ],
)
def test_weights_that_do_not_fit_are_refused(data: Path, spec: dict[str, Any], message: str) -> None:
    def made() -> Experiment:
        whole = {**SPEC, **spec}
        if whole["data"] == "digits":
            whole["partition"] = "iid"
        parsed = parse_spec({**whole, "max_devices": whole["num_devices"]})
        return Experiment(parsed, open_data(parsed.data, data_dir=data, cache_dir=data / "cache"))

    with pytest.raises(BadInput, match=message):
        made()


def test_weights_by_samples_are_not_written() -> None:
    assert parse_spec({"weights": "samples"}).digest() == parse_spec({}).digest()
