"""Models of other dtypes than float32: every algorithm trains, averages and keeps them in their own."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shared.algorithms
from shared.core.errors import BadInput
from shared.core.tensors import digest
from shared.federation.aggregation import Accumulator, FixedPoint, mean_of
from shared.federation.experiment import Experiment
from shared.federation.hooks import Update
from shared.federation.plan import plan_of
from shared.federation.registry import load_algorithm
from shared.federation.spec_parser import parse_spec
from shared.training import models
from shared.training.data.open_data import open_data
from shared.training.models import Classifier, Shape
from strata.checks.tried_rounds import TriedRounds
from tests.data_cache import data_cache
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import ran, tried

PRODUCT = [m.name for m in pkgutil.iter_modules(shared.algorithms.__path__) if not m.name.startswith("_")]
OF_FLOAT32 = ("es_afl", "t_fedavg")
DTYPES = (torch.bfloat16, torch.float16, torch.float64)


class Mixed(nn.Module):
    """A body of 16 bits and a head of 32, as in fine-tuning; a buffer of whole numbers."""

    def __init__(self, n: int, n_classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(n, 16).to(torch.bfloat16), nn.Linear(16, n_classes)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x.flatten(1).to(torch.bfloat16)).relu().float())
        return found


def conv_bn(dtype: torch.dtype) -> Callable[[Shape, int], Classifier]:
    def build(shape: Shape, n_classes: int) -> Classifier:
        body = nn.Sequential(nn.Conv2d(shape[0], 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        return Classifier(body, 4 * (shape[1] - 2) * (shape[2] - 2), n_classes).to(dtype)

    return build


def with_tensor(tensor: Any, *, parameter: bool = False) -> Callable[[Shape, int], nn.Module]:
    """A model with one more tensor, `odd`."""

    def build(shape: Shape, n_classes: int) -> nn.Module:
        made = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], n_classes))
        if parameter:
            made.register_parameter("odd", nn.Parameter(tensor(), requires_grad=False))
        else:
            made.register_buffer("odd", tensor())
        return made

    return build


@pytest.fixture(autouse=True)
def of_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in DTYPES:
        monkeypatch.setitem(models.MODELS, str(dtype)[6:], conv_bn(dtype))
    monkeypatch.setitem(models.MODELS, "mixed", lambda shape, n: Mixed(shape[1] * shape[2], n))
    for name, build in {
        "complex": with_tensor(lambda: torch.zeros(3, dtype=torch.complex64)),
        "integer": with_tensor(lambda: torch.zeros(3, dtype=torch.int64), parameter=True),
        "eight_bits": with_tensor(lambda: torch.zeros(3).to(torch.float8_e5m2)),
    }.items():
        monkeypatch.setitem(models.MODELS, name, build)


def experiment_of(name: str, model: str, **more: Any) -> Experiment:
    spec: dict[str, Any] = {"data": {"name": "digits", "n_train": 120, "n_test": 40}, "num_rounds": 2, "lr": 0.1}
    algorithm = load_algorithm(name)
    parsed = parse_spec({"algorithm": name, **spec, **algorithm.needs, "model": model, **more})
    parsed = parsed.resolved(n_devices=4, n_edges=2)
    return Experiment(parsed, open_data(parsed.data, data_dir=None, cache_dir=data_cache()))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("feddyn", "mixed"),
        ("fedavg", "mixed"),
        *((name, "bfloat16") for name in PRODUCT if name not in OF_FLOAT32),
        *((name, model) for name in ("fedavg", "scaffold", "moon") for model in ("float16", "float64")),
    ],
)
def test_every_algorithm_trains_and_keeps_models_in_their_own_dtype(name: str, model: str, tmp_path: Path) -> None:
    experiment = experiment_of(name, model)
    initial = experiment.initial
    done = TriedRounds(experiment, tmp_path).run()
    ctx = experiment.ctx(phase=experiment.phases[-1].name, round_no=2, n_clients=4)
    for found in experiment.algorithm.cloud.models(ctx, done.state).values():
        assert {key: tensor.dtype for key, tensor in found.items()} == {key: t.dtype for key, t in initial.items()}
        assert all(tensor.isfinite().all() for tensor in found.values())
        assert name == "local_sgd" or digest(found) != digest(initial)


@pytest.mark.matrix
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "yogi", "adagrad"])
@pytest.mark.parametrize("model", ["bfloat16", "float16"])
def test_server_optimisers_take_steps_of_16_bits_with_moments_of_32(optimizer: str, model: str, tmp_path: Path) -> None:
    done = TriedRounds(experiment_of("fedavg", model, server_optimizer=optimizer), tmp_path).run()
    moments = [*done.state.moments.first.values(), *done.state.moments.second.values()]
    assert {tensor.dtype for tensor in moments} == {torch.float32}
    assert {str(tensor.dtype)[6:] for tensor in done.state.of.model.values()} == {model, "int64"}
    assert all(tensor.isfinite().all() for tensor in done.state.of.model.values())


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32])
def test_the_mean_of_updates_is_exact_but_for_one_rounding_to_their_dtype(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    deltas = [torch.randn(100, generator=g).to(dtype) for _ in range(5)]
    weights, fixed_point = [3, 1, 7, 2, 9], FixedPoint(total_weight=22)
    total = Accumulator(Update, fixed_point)
    for delta, weight in zip(deltas, weights, strict=True):
        total.add(Update(delta={"w": delta}), weight)
    mean: Any = mean_of(total.result(), Update, fixed_point, model={"w": deltas[0]})
    exact = (torch.stack(deltas).double() * torch.tensor(weights)[:, None]).sum(0) / 22
    assert mean.delta["w"].dtype == dtype
    assert torch.allclose(mean.delta["w"].double(), exact.to(dtype).double(), rtol=0, atol=2**-40)


@pytest.mark.matrix
@pytest.mark.parametrize("model", ["bfloat16", "float64", "mixed"])
async def test_bits_of_other_dtypes_do_not_depend_on_the_agents(model: str) -> None:
    sizes = {"num_devices": 4, "num_edges": 2, "num_rounds": 2, "lr": 0.1}
    spec: dict[str, Any] = {"data": {"name": "digits", "n_train": 120, "n_test": 40}, "model": model, **sizes}
    done = await ran(spec, agent_devices=(3, 1))
    assert flat.same_bits(done.model, tried(**spec).model)
    assert done.info.accuracy is not None


@pytest.mark.parametrize(
    ("model", "more", "field", "message"),
    [
        ("complex", {}, "model.name", "complex: buffer odd is complex64"),
        ("integer", {}, "model.name", "integer: parameter odd is int64; as a buffer it would be kept"),
        ("eight_bits", {}, "model.name", "eight_bits: buffer odd is float8_e5m2"),
        ("bfloat16", {"algorithm": "t_fedavg"}, "algorithm.name", "features.0.weight of bfloat16 is bfloat16"),
        ("float64", {"algorithm": "es_afl"}, "algorithm.name", "is defined for float32"),
        ("float16", {"compression": {"up": "int8"}}, "compression", "codecs compress float32 parameters"),
        ("float16", {"vectorised": {"width": 2}}, "vectorised", "float32 alone"),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(
    model: str, more: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        experiment_of(more.get("algorithm", "fedavg"), model, **{k: v for k, v in more.items() if k != "algorithm"})
    assert refused.value.field == field
    assert message in refused.value.detail


def test_the_plan_says_the_dtypes() -> None:
    assert any("(bfloat16 1,040, float32 170)" in line for line in plan_of(experiment_of("fedavg", "mixed")))
    assert not any("float32" in line for line in plan_of(experiment_of("fedavg", "mlp")))
