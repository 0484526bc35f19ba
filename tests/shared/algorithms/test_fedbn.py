"""FedBN: Li et al., algorithm 1: batch-norm stays at the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.algorithms.fedbn import norm_names
from shared.core.tensor_records import TensorMap
from shared.federation.experiment import Experiment
from shared.federation.messages import Task
from shared.federation.visits.trainer import trainer_for
from tests.domains import write_domains
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import four, ran, resolved, run

NORM = {"features.1.weight", "features.1.bias"}
STATISTICS = {"features.1.running_mean", "features.1.running_var", "features.1.num_batches_tracked"}


def spec_of(name: str | dict[str, Any] = "fedbn", **more: Any) -> dict[str, Any]:
    return {
        **four(),
        "algorithm": name,
        "data": {"name": "digits", "n_train": 240, "n_test": 80},
        "model": "conv_bn",
        "num_rounds": 3,
        "batch_size": 20,
        **more,
    }


def plain(
    experiment: Experiment, chosen: dict[int, list[int]], num_rounds: int | None = None
) -> tuple[TensorMap, dict[int, TensorMap]]:
    """Computes algorithm 1; returns the shared layers and each client's batch-norm after some or all rounds."""
    stays = NORM | STATISTICS
    model, everyone = experiment.initial, [seat.number for seat in experiment.population.seats]
    own: dict[int, TensorMap] = {}
    sizes = [len(seat.train) for seat in experiment.population.seats]
    for round_no in range(1, (num_rounds or experiment.spec.num_rounds) + 1):
        seats, deltas = chosen.get(round_no, everyone), []
        for seat in seats:
            trained = flat.local(experiment, seat, round_no, model | own.get(seat, {}))
            own[seat] = {name: trained[name] for name in stays}
            deltas.append({name: trained[name] - model[name] for name in model.keys() - stays})
        mean = flat.exact_mean(deltas, [sizes[seat] for seat in seats], sum(sizes))
        model = {name: tensor + mean[name] if name in mean else tensor for name, tensor in model.items()}
    return model, own


async def test_batch_norm_stays_at_the_client_and_the_rest_is_averaged_by_samples() -> None:
    """Seat 1 misses round 2 and continues from its batch-norm of round 1."""
    lost = [{"round_no": 2, "seats": [1]}]
    spec = spec_of(losses=lost, partition={"name": "dirichlet", "alpha": 1.0})
    done = await ran(spec, agent_devices=(3, 1))
    model, own = plain(done.experiment, {2: [0, 2, 3]})
    assert flat.same_bits(done.model, model)
    held = []
    for seat in done.experiment.population.seats:
        score = trainer_for(done.experiment, Task(kind="evaluate"), seat.train, seat.test).evaluate(
            model | own[seat.number]
        )
        held.append(score.n_correct / score.n)
    assert done.info.accuracy == pytest.approx(np.mean(held))
    assert done.info.accuracy_of == "mean over clients"


@pytest.mark.whole
async def test_option_tested_selects_the_stored_or_the_newly_trained_model() -> None:
    trained, held = [
        await ran(spec_of({"name": "fedbn", "params": {"tested": which}}, num_rounds=2), agent_devices=(2, 2))
        for which in ("trained", "held")
    ]
    experiment = trained.experiment
    model, own = plain(experiment, {}, num_rounds=1)
    before = {row.seat: (row.received_loss, row.own_loss) for row in held.rounds[1].seats}
    for row in trained.rounds[1].seats:
        seat, start = experiment.seat(row.seat), model | own[row.seat]
        after = flat.local(experiment, row.seat, 2, start)
        trainer = trainer_for(experiment, Task(kind="evaluate"), seat.train, seat.test)
        losses = trainer.evaluate(start).loss, trainer.evaluate(after).loss
        assert (row.received_loss, row.own_loss) == pytest.approx(losses)
        assert before[row.seat] == pytest.approx((losses[0], losses[0]))
        assert losses[0] != pytest.approx(losses[1], rel=1e-2)
    assert trained.info.model_sha256 == held.info.model_sha256
    assert "clients_own" not in trained.info.final  # no client has just trained
    assert trained.info.accuracy == held.info.accuracy


async def test_no_batch_norm_tensor_is_uploaded() -> None:
    held = {"name": "fedbn", "params": {"tested": "held"}}
    fedbn, fedavg = [await ran(spec_of(name, num_rounds=2), agent_devices=(2, 2)) for name in (held, "fedavg")]
    up = [[row.up_bytes for row in done.rounds[0].seats] for done in (fedbn, fedavg)]
    assert all(mine + 4 * 16 <= theirs for mine, theirs in zip(*map(sorted, up), strict=True))
    assert flat.same_bits(
        *({name: model[name] for name in NORM | STATISTICS} for model in (fedbn.model, fedbn.experiment.initial))
    )


def test_only_layers_with_running_statistics_count_as_batch_norm() -> None:
    experiment = resolved(**spec_of())
    assert norm_names(experiment.ctx(phase="train", round_no=1, n_clients=1)) == NORM


@pytest.mark.slow
async def test_clients_with_different_images_do_better_with_their_own_batch_norm(tmp_path: Path) -> None:
    """The paper's claim: feature shift, equal labels. Five sets of digits, one per client, as in its experiments."""
    domains = ["mnist", "mnist_m", "svhn", "synth_digits", "usps"]
    data_dir = write_domains(tmp_path / "sets")
    fields: dict[str, Any] = {
        "data": {"name": "digit_domains", "domains": domains, "size": 8},
        "partition": {"name": "by_domain", "domains": domains},
        "num_devices": len(domains),
        "num_rounds": 5,
        "local_epochs": 4,
        "lr": 0.3,
    }
    own = await run(tmp_path, spec_of(**fields), agent_devices=(5,), common={"data_dir": data_dir})
    one = await run(tmp_path, spec_of("fedavg", **fields), agent_devices=(5,), common={"data_dir": data_dir})
    assert (own.info.accuracy or 0) > (one.info.final["clients_received"].accuracy or 0) + 0.05
