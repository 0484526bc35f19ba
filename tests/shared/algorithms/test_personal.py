"""Personal layers: those that the forward pass uses last, or those that a spec names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shared.core.errors import BadInput
from shared.federation.plan import plan_of
from shared.training import models
from shared.training.models import Shape, layers_of
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import four, resolved, tried

OUT = {"out.weight", "out.bias"}
BODY = {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"}


class _Net(nn.Module):
    """One function and one draw of weights, whichever of its two parts is registered first."""

    def __init__(self, shape: Shape, n_classes: int, *, head_first: bool) -> None:
        super().__init__()
        body = nn.Sequential(nn.Linear(shape[1] * shape[2], 16), nn.BatchNorm1d(16), nn.ReLU())
        parts = {"body": body, "out": nn.Linear(16, n_classes)}
        for name in sorted(parts, reverse=head_first):
            self.add_module(name, parts[name])

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.get_submodule("out")(self.get_submodule("body")(x.flatten(1)))
        return outputs


@pytest.fixture(autouse=True)
def two_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """`body_first` and `head_first` differ in the order of registration alone."""
    for name, head_first in (("body_first", False), ("head_first", True)):

        def build(shape: Shape, n_classes: int, head_first: bool = head_first) -> Any:
            return _Net(shape, n_classes, head_first=head_first)

        monkeypatch.setitem(models.MODELS, name, build)
    layers_of.cache_clear()


def spec_of(algorithm: Any, model: str = "head_first", **more: Any) -> dict[str, Any]:
    return {
        **four(),
        "algorithm": algorithm,
        "model": model,
        "data": {"name": "digits", "n_train": 240, "n_test": 80},
        "partition": {"name": "by_group", "n_groups": 2, "gamma": 0.9},
        "num_rounds": 3,
        "batch_size": 16,
        **more,
    }


PERSONAL: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "fedper"}, "device", "personal_layers"),
    ({"name": "fedper"}, "edge", "personal_layers"),
    ({"name": "dtpfl", "params": {"pretrain_rounds": 2}}, "edge", "personal_layers"),
    ({"name": "lafl_cpn", "params": {"normalise": "fixed"}}, "device", "p"),
]
EACH = pytest.mark.parametrize(("algorithm", "client", "count"), PERSONAL, ids=["fedper", "of edges", "dtpfl", "lafl"])


def with_params(algorithm: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {**algorithm, "params": {**algorithm.get("params", {}), **params}}


@pytest.mark.whole
@pytest.mark.matrix
@EACH
def test_the_order_of_registration_changes_no_bit(algorithm: dict[str, Any], client: str, count: str) -> None:
    """The head is what clients keep of both models, and naming it is the same as counting from the output."""
    counted, named = with_params(algorithm, **{count: 1}), with_params(algorithm, personal=["out"])
    specs = [spec_of(counted, "body_first"), spec_of(counted), spec_of(named), spec_of(named, "body_first")]
    done = [tried(**spec, client=client) for spec in specs]
    assert all(one.experiment.personal_names == OUT for one in done)
    assert all(flat.same_bits(done[0].model, one.model) for one in done[1:])
    initial = done[1].experiment.initial
    if algorithm["name"] == "fedper":  # whose global model keeps the initial personal layers
        assert [name for name in initial if torch.equal(done[1].model[name], initial[name])] == [
            name for name in initial if name in OUT or name.endswith("num_batches_tracked")
        ]
    body = tried(**spec_of(with_params(algorithm, personal=["body"])), client=client)
    assert not flat.same_bits(body.model, done[0].model)


@pytest.mark.matrix
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddyn", "per_fedavg"])
def test_nor_does_it_with_algorithms_without_personal_layers(algorithm: str) -> None:
    one, other = [tried(**spec_of(algorithm, name)) for name in ("body_first", "head_first")]
    assert flat.same_bits(one.model, other.model)


@EACH
def test_a_name_is_of_a_module_or_a_tensor(algorithm: dict[str, Any], client: str, count: str) -> None:
    cases = {
        ("body.1", "out.bias"): {"body.1.weight", "body.1.bias", "out.bias"},
        ("body.0.weight",): {"body.0.weight"},
    }
    for named, tensors in cases.items():
        experiment = resolved(**spec_of(with_params(algorithm, personal=named), client=client))
        assert experiment.personal_names & (OUT | BODY) == tensors


@EACH
def test_an_unknown_name_is_refused_with_the_known_ones(algorithm: dict[str, Any], client: str, count: str) -> None:
    with pytest.raises(
        BadInput, match=r"unknown module or tensor of head_first 'ou'.* known: body.0, body.1, out$"
    ) as no:
        resolved(**spec_of(with_params(algorithm, personal=["out", "ou"]), client=client))
    assert no.value.field == "algorithm.params.personal"


@EACH
def test_layers_are_counted_or_named(algorithm: dict[str, Any], client: str, count: str) -> None:
    with pytest.raises(BadInput, match=f"leave out {count}"):
        resolved(**spec_of(with_params(algorithm, personal=["out"], **{count: 2}), client=client))


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [
        ({"name": "fedper"}, "personal with fedper: out"),
        ({"name": "fedper", "params": {"personal_layers": 2}}, "personal with fedper: out, body"),
        ({"name": "fedper", "params": {"personal": ["body.0.bias"]}}, "personal with fedper: body.0.bias"),
        ({"name": "lafl_cpn", "params": {"p": 1}}, "personal with lafl_cpn: out"),
        ({"name": "fedbn"}, "personal with fedbn: body.1"),
        ({"name": "local_sgd"}, "personal with local_sgd: out, body"),
        ({"name": "fedper", "params": {"personal_layers": 0}}, None),
        ({"name": "fedavg"}, None),
    ],
)
def test_the_plan_names_what_is_personal(algorithm: dict[str, Any], line: str | None) -> None:
    found = [each for each in plan_of(resolved(**spec_of(algorithm))) if each.startswith("personal")]
    assert found == ([] if line is None else [line])


def test_a_spec_that_names_nothing_is_written_as_ever() -> None:
    for name in ("fedper", "dtpfl", "lafl_cpn"):
        experiment = resolved(**spec_of(name, client="edge" if name == "dtpfl" else "device"))
        assert "personal" not in experiment.params.model_dump(mode="json")


class _Tied(nn.Module):
    """An autoencoder of words: the last layer has the weights of the first, and a bias of its own or none."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(shape[1] * shape[2], n_classes, bias=False)
        self.middle = nn.Linear(n_classes, shape[1] * shape[2])
        self.decoder = nn.Linear(shape[1] * shape[2], n_classes, bias=self.has_bias)
        self.decoder.weight = self.encoder.weight

    has_bias = True

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.decoder(self.middle(self.encoder(x.flatten(1)).relu()))
        return outputs


class _TiedOnly(_Tied):
    has_bias = False


@pytest.mark.parametrize("build", [_Tied, _TiedOnly])
def test_a_last_layer_with_the_weights_of_another_is_asked_about(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, build.__name__.lower().strip("_"), build)

    def experiment(**params: Any) -> Any:
        return resolved(**spec_of({"name": "fedper", "params": params}, build.__name__.lower().strip("_")))

    for params in ({}, {"personal": ["decoder"]}, {"personal": ["decoder.weight"]}):
        with pytest.raises(
            BadInput, match=r"decoder.weight of \w+ is the tensor encoder.weight too: name what is personal"
        ):
            experiment(**params)
    named = experiment(personal=["encoder", "middle.bias"])
    assert named.personal_names == {"encoder.weight", "middle.bias"}
    assert experiment(personal_layers=3).personal_names == {*named.trainable_names}


class _Norms(nn.Module):
    """A batch-norm that tracks nothing, one of the user's own, and a layer with a buffer that is no batch-norm."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(shape[1] * shape[2], n_classes)
        self.plain = nn.BatchNorm1d(n_classes, track_running_stats=False)
        self.out.register_buffer("mask", torch.ones(n_classes))
        self.own = nn.Module()
        self.own.scale = nn.Parameter(torch.ones(n_classes))
        self.own.register_buffer("running_mean", torch.zeros(n_classes))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.plain(self.out(x.flatten(1)) * self.out.mask) * self.own.scale
        return outputs


def test_fedbn_keeps_batch_norm_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "norms", _Norms)
    experiment = resolved(**spec_of("fedbn", "norms"))
    buffers = {"out.mask", "own.running_mean"}  # stay on the device, as all buffers do with this method
    assert experiment.personal_names == {"plain.weight", "plain.bias", "own.scale"} | buffers


# ---- models that are not what their attributes say


class _Hidden(nn.Module):
    """Its forward pass does more than `head` on `features`."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 16))
        self.head = nn.Linear(16, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(self.features(x)) * 2)
        return outputs


class _LongHead(nn.Module):
    """Its head is two layers."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__()
        self.features = nn.Flatten()
        self.head = nn.Sequential(nn.Linear(shape[1] * shape[2], 16), nn.Linear(16, n_classes))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.features(x))
        return outputs


class _OtherHead(_LongHead):
    """Its outputs are those of another layer than `head`."""

    def __init__(self, shape: Shape, n_classes: int) -> None:
        super().__init__(shape, n_classes)
        self.add_module("head", nn.Linear(shape[1] * shape[2], 16))
        self.out = nn.Linear(16, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(super().forward(x))
        return outputs


@pytest.mark.parametrize(
    ("build", "spec", "cause"),
    [
        (
            _OtherHead,
            {"algorithm": "es_afl"},
            "keep all outputs of `head`, but those of _OtherHead are of another layer",
        ),
        (_Hidden, {"model": {"name": "odd", "projection": 4}}, r"model.projection takes a model for `head\(features"),
        (
            _Hidden,
            {"algorithm": "moon"},
            r"moon takes a model for `head\(features\(x\)\)`, but the `forward` of _Hidden",
        ),
        (_LongHead, {"algorithm": "fedser"}, "_LongHead has a Sequential there"),
        (_LongHead, {"algorithm": "es_afl"}, "_LongHead has a Sequential there"),
        (_LongHead, {"model": {"name": "odd", "projection": 4}}, "_LongHead has a Sequential there"),
    ],
    ids=["other head", "projection of hidden", "moon", "fedser", "es_afl", "projection"],
)
def test_a_model_that_is_not_what_its_attributes_say_is_refused(
    build: Any, spec: dict[str, Any], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.MODELS, "odd", build)
    with pytest.raises(BadInput, match=cause) as refused:
        _ = resolved(**{**spec_of("fedavg", "odd"), **spec}).units
    assert refused.value.field == "model.name"
