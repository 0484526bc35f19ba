"""`local_sgd` and `transfer`: clients (devices or edges) with their own models."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shared.algorithms import flat, plain_dtpfl
from tests.shared.algorithms.layouts import ran, tried
from tests.shared.algorithms.test_fedper import CLIENTS, layout
from tests.shared.algorithms.test_fedper import spec_of as fedper_spec

AROUND = 2_500
MODEL_BYTES = 4 * (64 * 64 + 64 + 64 * 10 + 10)


def spec_of(client: str, name: str, **more: Any) -> dict[str, Any]:
    """Returns a spec with the four clients of FedPer's tests; `transfer-2` tunes for two rounds."""
    name, _, rounds = name.partition("-")
    params = {"tune_rounds": int(rounds)} if rounds else {}
    return fedper_spec(client, None, **{"algorithm": {"name": name, "params": params}, **more})


@pytest.mark.matrix
@CLIENTS
async def test_clients_train_alone(client: str) -> None:
    done = await ran(spec_of(client, "local_sgd"), **layout(client))
    alone = plain_dtpfl.run(done.experiment, personal_layers=2, num_rounds=3)  # all of mlp's layers
    held = [plain_dtpfl.accuracy(done.experiment, c, model) for c, model in alone.models.items()]
    assert done.info.accuracy == pytest.approx(sum(held) / 4)
    assert done.rounds[-1].client_accuracy == done.info.accuracy  # after its training, unlike FedPer's
    assert flat.same_bits(done.model, done.experiment.initial)
    rows = [row for detail in done.rounds for row in (detail.seats if client == "device" else detail.edges)]
    assert {row.outcome for row in rows} == {"used"}
    assert all(0 < row.up_bytes < AROUND for row in rows)
    assert AROUND < MODEL_BYTES / 4


@pytest.mark.matrix
@CLIENTS
async def test_transfer_is_fedavg_followed_by_local_training(client: str) -> None:
    done = await ran(spec_of(client, "transfer-2"), **layout(client))
    together = plain_dtpfl.run(done.experiment, personal_layers=0, num_rounds=1)
    assert flat.distance(done.model, together.base) < 1e-6
    alone = plain_dtpfl.run(done.experiment, personal_layers=2, num_rounds=3, first=2, start=done.model)
    held = [plain_dtpfl.accuracy(done.experiment, c, model) for c, model in alone.models.items()]
    assert done.info.accuracy == pytest.approx(sum(held) / 4)
    assert [row.phase for row in done.rounds] == ["federate", "tune", "tune"]
    assert len({row.model_sha256 for row in done.rounds}) == 1
    last = done.rounds[-1]
    assert all(row.up_bytes < AROUND for row in (last.seats if client == "device" else last.edges))


@pytest.mark.slow
@CLIENTS
async def test_transfer_without_tuning_is_fedavg_and_with_nothing_else_local_sgd(client: str) -> None:
    fedavg, none, alone, all_ = [
        await ran(spec_of(client, name, num_rounds=2), **layout(client))
        for name in ("fedavg", "transfer-0", "local_sgd", "transfer-2")
    ]
    assert none.info.model_sha256 == fedavg.info.model_sha256
    assert all_.info.model_sha256 == alone.info.model_sha256
    assert all_.info.accuracy == alone.info.accuracy
    assert [row.client_accuracy for row in all_.rounds] == [row.client_accuracy for row in alone.rounds]


# ---- FedAvg and FedProx with users as clients


@pytest.mark.whole
async def test_fedprox_with_users_as_clients_applies_to_their_devices() -> None:
    spec = spec_of("edge", "fedavg", num_rounds=2, local_epochs=2)
    fedavg = await ran(spec, **layout("edge"))
    null, pulled = [
        tried(**{**spec, "algorithm": {"name": "fedprox", "params": {"mu": mu}}}).model for mu in (0.0, 1.0)
    ]
    assert flat.distance(fedavg.model, flat.fedavg(fedavg.experiment, 2)) < 1e-6
    assert flat.same_bits(null, fedavg.model)
    assert not flat.same_bits(pulled, fedavg.model)
    assert fedavg.info.final["clients_received"].n == 4
