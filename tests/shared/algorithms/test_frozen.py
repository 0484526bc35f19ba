"""Models with frozen parameters: they keep their bits in every algorithm, and do not travel up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shared.algorithms.fedprox import pull_towards
from shared.core.errors import BadInput
from shared.core.records import Record
from shared.core.tensor_records import Tensor
from shared.federation.context import Context
from shared.federation.hooks import DeviceHooks, Training
from shared.federation.plan import plan_of
from shared.federation.registry import load_algorithm
from shared.training import models
from shared.training.models import Classifier, Shape
from strata.checks import algorithm_rounds
from strata.checks.tried_rounds import TriedRounds
from tests.shared.algorithms.layouts import Ended, federation, ran, resolved, tried
from tests.shared.algorithms.test_contract import FEDERATED, PRODUCT, spec_of

FROZEN = ("features.3.weight", "features.3.bias", "features.4.weight", "features.4.bias")
"""The middle of `frozen_middle`: a convolution and its batch-norm."""
SEEN, HEAD = "features.0.weight", "head.weight"


@pytest.fixture(autouse=True)
def frozen_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """`free_middle` and variants of it, of which parts are frozen."""
    monkeypatch.setitem(models.MODELS, "free_middle", _free_middle)
    monkeypatch.setitem(models.MODELS, "frozen_middle", _frozen_middle)
    monkeypatch.setitem(models.MODELS, "all_frozen", lambda *args: _free_middle(*args).requires_grad_(False))
    monkeypatch.setitem(models.MODELS, "frozen_head", _frozen_head)
    monkeypatch.setitem(models.MODELS, "evaluating", _Evaluating)


def _free_middle(shape: Shape, n_classes: int) -> Classifier:
    middle = (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    body = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *middle)
    return Classifier(body, 4 * (shape[1] - 2) * (shape[2] - 2), n_classes)


def _frozen_middle(shape: Shape, n_classes: int) -> Classifier:
    model = _free_middle(shape, n_classes)
    for name in FROZEN:
        model.get_parameter(name).requires_grad_(False)
    return model


def _frozen_head(shape: Shape, n_classes: int) -> Classifier:
    model = _free_middle(shape, n_classes)
    model.head.requires_grad_(False)
    return model


class _Evaluating(Classifier):
    """A linear probe whose body stays in evaluation mode in training, as linear probing usually does it."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        body = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten())
        super().__init__(body, 4 * (shape[1] - 2) * (shape[2] - 2), n_classes)
        self.features.requires_grad_(False)

    def train(self, mode: bool = True) -> _Evaluating:
        super().train(mode)
        self.features.eval()
        return self


def spec_with(name: str, **more: Any) -> dict[str, Any]:
    """A spec of two rounds of `frozen_middle`, in which all that could move a frozen tensor is on."""
    return {**spec_of(name), "model": "frozen_middle", "batch_size": 25, "weight_decay": 0.01, **more}


def named(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a record, with the keys under which maps hold them."""
    if isinstance(value, Record):
        for field in type(value).model_fields:
            yield from named(getattr(value, field))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from named(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from named(item)
    elif isinstance(value, torch.Tensor):
        yield name, value


def updates_in(done: TriedRounds) -> list[Record]:
    """The updates of devices and edges."""
    return [record for record, _ in done.monitor.encoded if type(record) is done.experiment.algorithm.update]


def kept(done: Ended | TriedRounds, algorithm: Any) -> None:
    """Asserts that frozen tensors have their bits, and that the rest is finite."""
    initial = done.experiment.initial
    ctx = done.experiment.ctx(phase=done.experiment.phases[-1].name, round_no=2, n_clients=1)
    for model in algorithm.cloud.models(ctx, done.state).values():
        assert all(torch.equal(model[name], initial[name]) for name in FROZEN)
        assert all(tensor.isfinite().all() for tensor in model.values())


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", PRODUCT)
def test_frozen_tensors_keep_their_bits_in_every_message_and_state(name: str, tmp_path: Path) -> None:
    """Whoever holds one holds the initial one, none is in an update, and the layers before and after it are trained."""
    algorithm = load_algorithm(name)
    more = {key: value for key, value in spec_with(name).items() if key not in ("algorithm", *algorithm.needs)}
    done = algorithm_rounds.tried(algorithm, tmp_path, monitored=True, **more)
    assert done.monitor.faults == []
    initial, frozen = done.experiment.initial, {*FROZEN}
    for record, _ in done.monitor.encoded:
        if name == "es_afl":  # whose sub-networks hold parts of them
            break
        assert all(torch.equal(tensor, initial[key]) for key, tensor in named(record) if key in frozen), record
    updates = updates_in(done)
    assert updates
    assert not any(key in frozen for update in updates for key, _ in named(update))
    kept(done, algorithm)
    if name in FEDERATED:
        model = algorithm.cloud.models(done.experiment.ctx(phase="", round_no=2, n_clients=1), done.state)["global"]
        personal = HEAD not in {key for update in updates for key, _ in named(update)}
        assert not torch.equal(model[SEEN], initial[SEEN])
        assert personal or not torch.equal(model[HEAD], initial[HEAD]) or name == "dtpfl"


ONCE = [name for name in PRODUCT if load_algorithm(name).trains_once and name != "fedser"]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", ONCE)
def test_devices_that_train_at_the_same_time_keep_frozen_tensors(name: str) -> None:
    spec = spec_with(name, vectorised={"width": 3}, client="device")
    if load_algorithm(name).needs.get("client") == "edge":
        spec["client"] = "edge"
    done = tried(**spec)
    kept(done, done.experiment.algorithm)


OPTIONS: list[dict[str, Any]] = [
    {"edge_rounds": 2},
    {"optimizer": "adam", "lr": 0.01},
    {"server_optimizer": "adam", "edge_rounds": 2},
    {"edge_upload": "mean", "edge_rounds": 2},
    {"algorithm": {"name": "fedprox", "params": {"mu": 0.1}}, "edge_rounds": 2},
    {"algorithm": "scaffold", "edge_rounds": 2, "vectorised": {"width": 2}},
    {"algorithm": {"name": "scaffold", "params": {"option": "I"}}},
    {"algorithm": "feddyn", "edge_rounds": 2},
    {"algorithm": {"name": "feddc", "params": {"relative_weights": True, "clip_norm": 1.0}}, "edge_rounds": 2},
    {"algorithm": {"name": "bofl", "params": {"compare": "update", "adjust": "train", "optimiser": "adam"}}},
    {"algorithm": {"name": "per_fedavg", "params": {"hessian": "hessian_free"}}},
    {"algorithm": {"name": "es_afl", "params": {"start": 0.4, "head_bias": "fixed", "statistics": "retaken"}}},
    {"algorithm": {"name": "lafl_cpn", "params": {"p": 3}}, "num_rounds": 3},
    {"algorithm": {"name": "fedper", "params": {"personal_layers": 2}}, "client": "edge"},
    {"algorithm": {"name": "dtpfl", "params": {"personal_layers": 2, "pretrain_rounds": 1}}, "client": "edge"},
    {"algorithm": {"name": "bofl", "local": "fedser"}},
    {"algorithm": {"name": "fedbn", "params": {"tested": "trained"}}},
]


@pytest.mark.matrix(3)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: str(options)[:70])
def test_no_option_moves_frozen_tensors(options: dict[str, Any]) -> None:
    done = tried(**spec_with("fedavg", **options))
    kept(done, done.experiment.algorithm)


@pytest.mark.whole
async def test_no_codec_moves_them_either() -> None:
    spec = spec_with("fedavg", compression={"up": "int8", "down": "int8"}, edge_rounds=2)
    done = await ran(spec, agent_devices=(2, 2))
    kept(done, done.experiment.algorithm)


@pytest.mark.whole
async def test_an_update_costs_what_is_trained_of_the_model() -> None:
    """By the bodies that devices send, and as is expected of them: what is frozen costs nothing on the way up."""
    free, frozen = [
        await ran(spec_with("fedavg", model=name, num_rounds=1)) for name in ("free_middle", "frozen_middle")
    ]
    spared = sum(4 * frozen.experiment.shapes[name].numel() for name in FROZEN)
    assert spared == 4 * (4 * 4 * 9 + 3 * 4)
    rows = [done.rounds[0].seats[0] for done in (free, frozen)]
    heads = [len(name) for name in FROZEN]
    less = rows[0].up_bytes - rows[1].up_bytes
    assert spared + sum(heads) < less < spared + sum(heads) + 80 * len(FROZEN)  # their entries in the body's header
    assert rows[0].down_bytes == rows[1].down_bytes
    assert frozen.experiment.flops < free.experiment.flops
    uses = [done.experiment.ctx(phase="train", round_no=1, n_clients=4).model.link_use for done in (free, frozen)]
    assert uses[0].up_bytes - uses[1].up_bytes == spared


def test_a_part_in_evaluation_mode_stays_as_it_is() -> None:
    """Its statistics are neither tracked nor used as those of the batch, and its dropout drops nothing."""
    plain, stacked = [
        tried(**spec_with("fedavg", model="evaluating", **more)) for more in ({}, {"vectorised": {"width": 3}})
    ]
    for done in (plain, stacked):
        body = [name for name in done.model if name.startswith("features")]
        assert all(torch.equal(done.model[name], done.experiment.initial[name]) for name in body)
    assert torch.allclose(stacked.model["head.weight"], plain.model["head.weight"], atol=1e-5)


def test_a_model_of_which_nothing_is_trained_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"all_frozen has no parameter that training changes: 10 are frozen") as refused:
        resolved(**spec_with("fedavg", model="all_frozen"))
    assert refused.value.field == "model.name"


@pytest.mark.parametrize("more", [{}, {"vectorised": {"width": 2}}], ids=["one by one", "stacked"])
async def test_a_correction_with_tensors_for_frozen_parameters_says_which_names_it_needs(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that takes all parameters for trained ones."""

    def training(self: DeviceHooks, ctx: Context, state: Any, message: Any) -> Training:
        names = [name for name in message.model if name not in ctx.model.buffer_names]
        return Training(message.model, pull_towards(message.model, names, 0.1))

    monkeypatch.setattr(DeviceHooks, "training", training)
    async with federation(tmp_path, agent_devices=(4,)) as fed:
        info = await fed.finish(await fed.submit(spec_with("fedavg", num_rounds=1, **more)))
    assert info.status == "failed"
    cause = "a correction has 10 tensors, the model 6 trainable parameters: hooks find their names in"
    assert cause in str(info.reason)


def test_a_head_that_is_frozen_cannot_be_the_personal_layer() -> None:
    cause = "personal_layers: nothing is trained of the last 1 layers in frozen_head: all parameters are frozen"
    with pytest.raises(BadInput, match=cause):
        resolved(**spec_with("fedper", model="frozen_head"))


def test_the_plan_says_what_is_frozen() -> None:
    lines = plan_of(resolved(**spec_with("fedavg")))
    assert "frozen, so not trained and not sent up: 156 parameters (features.3, features.4)" in lines
    assert not any("frozen" in line for line in plan_of(resolved(**spec_with("fedavg", model="free_middle"))))
    body = plan_of(resolved(**spec_with("fedavg", model="evaluating")))
    assert "frozen, so not trained and not sent up: 48 parameters (features)" in body
