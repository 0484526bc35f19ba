"""FedPer: base layers are averaged, personal layers stay with the client, a device or an edge."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core.errors import BadInput
from shared.federation.hooks import last_layers
from tests.shared.algorithms import flat, plain_dtpfl
from tests.shared.algorithms.layouts import ran, resolved

AROUND = 2_500
"""Bounds the bytes of a body beside its model, mostly the spec."""
BASE_BYTES, HEAD_BYTES = 4 * (64 * 64 + 64), 4 * (64 * 10 + 10)


def spec_of(client: str, personal_layers: int | None = 1, **more: Any) -> dict[str, Any]:
    """Returns a spec of four clients of two groups of classes; without `personal_layers` FedAvg's."""
    fedper = {"name": "fedper", "params": {"personal_layers": personal_layers}}
    spec = {
        "algorithm": {"name": "fedavg"} if personal_layers is None else fedper,
        "data": {"name": "digits", "n_train": 320, "n_test": 80},
        "partition": {"name": "by_group", "n_groups": 2, "gamma": 0.9},
        "client": client,
        "num_devices": 4 if client == "device" else 8,
        "num_edges": 2 if client == "device" else 4,
        "num_rounds": 3,
        "batch_size": 16,
        "lr": 0.1,
    }
    return {**spec, **more}


def layout(client: str) -> dict[str, Any]:
    return {"n_edges": 2, "agent_devices": (3, 1)} if client == "device" else {"n_edges": 4, "agent_devices": (5, 3)}


CLIENTS = pytest.mark.parametrize("client", ["device", "edge"])


@pytest.mark.matrix
@CLIENTS
async def test_base_is_averaged_and_personal_layers_stay_at_the_client(client: str) -> None:
    """The base of round 3 depends on every client's personal layers of rounds 1 and 2: equal bits, equal layers."""
    done = await ran(spec_of(client), **layout(client))
    plain = plain_dtpfl.run(done.experiment, personal_layers=1, num_rounds=3)
    assert flat.same_bits(done.model, plain.base)
    assert flat.same_bits(*({"head.weight": model["head.weight"]} for model in (done.model, done.experiment.initial)))
    held = [plain_dtpfl.accuracy(done.experiment, c, model) for c, model in plain.models.items()]
    assert done.info.accuracy == pytest.approx(sum(held) / 4)
    assert done.info.accuracy_of == "mean over clients"
    assert done.info.final["clients_own"].n == 4
    before = plain_dtpfl.run(done.experiment, personal_layers=1, num_rounds=2)
    held = [plain_dtpfl.accuracy(done.experiment, c, model) for c, model in before.models.items()]
    assert done.rounds[2].client_accuracy == pytest.approx(sum(held) / 4)  # before further training


@pytest.mark.whole
async def test_with_all_layers_personal_clients_train_alone() -> None:
    done = await ran(spec_of("device", 2), **layout("device"))
    assert flat.same_bits(done.model, done.experiment.initial)
    plain = plain_dtpfl.run(done.experiment, personal_layers=2, num_rounds=3)
    held = [plain_dtpfl.accuracy(done.experiment, c, model) for c, model in plain.models.items()]
    assert done.info.accuracy == pytest.approx(sum(held) / 4)
    assert min(held) > 0.3


async def test_personal_layers_are_not_uploaded() -> None:
    devices = await ran(spec_of("device"), **layout("device"))
    for detail in devices.rounds:
        for row in detail.seats:
            assert BASE_BYTES < row.up_bytes < BASE_BYTES + AROUND
    users = await ran(spec_of("edge"), **layout("edge"))
    for detail in users.rounds:
        assert all(BASE_BYTES < row.up_bytes < BASE_BYTES + AROUND for row in detail.edges)
        assert all(row.up_bytes > BASE_BYTES + HEAD_BYTES for row in detail.seats)  # shares of the whole model
    assert AROUND < HEAD_BYTES


@pytest.mark.slow
async def test_clients_with_different_data_do_better_than_with_one_model() -> None:
    """The paper's claim, with two groups that have their own classes."""
    own = {"partition": {"name": "by_group", "n_groups": 2, "gamma": 1.0}, "num_rounds": 8, "local_epochs": 2}
    fedper = await ran(spec_of("device", 1, **own), **layout("device"))
    fedavg = await ran(spec_of("device", None, **own), **layout("device"))
    one_model = fedavg.info.final["clients_received"].accuracy
    assert fedper.info.accuracy is not None
    assert one_model is not None
    assert fedper.info.accuracy > one_model + 0.03


# ---- layers


def test_batch_norm_belongs_to_the_layer_before_it() -> None:
    experiment = resolved(algorithm="fedper", model="conv_bn")
    ctx = experiment.ctx(phase="train", round_no=1, n_clients=1)
    head = {"head.weight", "head.bias"}
    norm = {f"features.1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert last_layers(ctx, 0) == frozenset()
    assert last_layers(ctx, 1) == head
    assert last_layers(ctx, 2) == head | norm | {"features.0.weight"}


def test_more_personal_layers_than_the_model_has_are_refused_by_the_field() -> None:
    experiment = resolved(algorithm="fedper", model="mlp")
    with pytest.raises(BadInput, match="personal_layers 3: mlp has 2 layers") as refused:
        last_layers(experiment.ctx(phase="train", round_no=1, n_clients=1), 3)
    assert refused.value.field == "algorithm.params.personal_layers"
