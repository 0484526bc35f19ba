"""Partial fits, augmented batches, and tests on sets of several owners, through three real tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from edge_server.rounds.evaluation import own_scores
from shared.federation.hooks import Broadcast
from shared.federation.messages import Task
from shared.federation.test_sets import Samples
from shared.federation.visits.trainer import LocalTrainer, trainer_for
from shared.training import models
from shared.training.evaluation import evaluate
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, federation, four, ran, resolved, tried

ROOMS = (2, 1)


def spec_of(algorithm: str = "probe_bench", **more: Any) -> dict[str, Any]:
    return {
        **four(),
        "algorithm": algorithm,
        "data": {"name": "digits", "n_train": 150, "n_test": 60},
        "num_devices": 3,
        "local_epochs": 2,
        "test_on": ["union"],
        **more,
    }


def score(done: Ended, model: Any, samples: Samples, shade: float | None) -> tuple[int, int]:
    """Returns the number of images, and how many the model classifies correctly if all have one shade."""
    experiment = done.experiment
    models.write_state(experiment.model, model)
    shaded = None if shade is None else (lambda x: torch.full_like(x, shade))
    x, y = (experiment.data.test_x, experiment.data.test_y)
    found = evaluate(experiment.model, x, y, samples.indices, transform=shaded)
    return found.n, found.n_correct


async def test_a_part_is_trained_for_its_own_epochs_and_leaves_no_trace() -> None:
    probe, fedavg = [await ran(spec_of(name), agent_devices=ROOMS) for name in ("probe_bench", "fedavg")]
    assert probe.info.model_sha256 == fedavg.info.model_sha256  # no parameter stays frozen, and no stream changes
    steps = {seat: -(-len(probe.experiment.seat(seat).train) // 32) for seat in range(3)}
    assert probe.figures("parameters") == {seat: [2, 2] for seat in range(3)}
    assert probe.figures("moved_others") == {seat: [0, 0] for seat in range(3)}
    assert probe.figures("moved_head") == {seat: [2, 2] for seat in range(3)}
    assert probe.figures("head_steps") == {seat: [n, n] for seat, n in steps.items()}
    assert probe.figures("batches") == {seat: [2 * n, 2 * n] for seat, n in steps.items()}  # the work's two epochs
    assert probe.figures("union") == {seat: [60, 60] for seat in range(3)}


async def test_images_are_prepared_for_their_owner_at_devices_and_at_the_cloud() -> None:
    done = await ran(spec_of(num_rounds=1), agent_devices=ROOMS)
    seats, (detail,) = done.experiment.population.seats, done.rounds
    tests = {f"device-{seat.number}": seat.test for seat in seats}
    right = {
        client: score(done, done.model, part, 1.0 if client == "device-1" else None) for client, part in tests.items()
    }
    assert detail.evaluation is not None
    found = detail.evaluation["global_on_union"]
    assert found.accuracy == pytest.approx(sum(hits for _, hits in right.values()) / 60)
    assert found.n == 60
    for row in detail.seats:
        received = score(done, done.experiment.initial, seats[row.seat].test, -1.0)
        assert row.received_accuracy == pytest.approx(received[1] / received[0])
        mine = [part for client, part in tests.items() if client == f"device-{row.seat}"]
        assert row.n_test == len(mine[0])
        assert row.own_on["union"] != row.own_accuracy
    assert detail.clients["own_on_union"].n == 3
    assert "global_at_edge_1" in done.info.final


async def test_own_models_are_tested_on_all_tests_by_client_and_in_due_rounds_only() -> None:
    """FedAvg transforms no images: a model's score on the union is the sum of its scores on the parts."""
    spec = spec_of("local_sgd", num_rounds=2, eval_every=2)
    done = await ran(spec, agent_devices=ROOMS)
    first, second = done.rounds
    assert all(row.own_on == {} and row.own_accuracy is None for row in first.seats)
    assert sorted(row.seat for row in second.seats if "union" in row.own_on) == [0, 1, 2]
    values = [row.own_on["union"] for row in second.seats]
    assert second.clients["own_on_union"].mean == pytest.approx(sum(values) / 3)
    assert done.info.final["clients_own_on_union"].accuracy == pytest.approx(sum(values) / 3)
    assert len(set(values)) > 1  # models of three clients
    assert 0 < second.testing_s <= 2 * second.wall_s  # of two agents in parallel


async def test_an_edge_that_is_a_client_is_tested_on_the_union_too() -> None:
    spec = spec_of("fedper", client="edge", num_devices=4, test_fraction=0.25, num_rounds=1)
    done = await ran(spec, agent_devices=(2, 2))
    rows = done.rounds[0].edges
    assert all(0 <= row.own_on["union"] <= 1 for row in rows)
    assert done.info.final["clients_own_on_union"].n == 2


@pytest.mark.parametrize(("name", "own", "n_tests"), [("fedavg", "trained", 4), ("fedper", "received", 3)])
def test_an_edge_tests_only_the_requested_models_on_the_union(
    name: str, own: str, n_tests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models on the client's tests, one of them on the parts of two owners; equal models are tested once."""
    spec = spec_of(name, client="edge", num_devices=4, test_fraction=0.25)
    experiment = resolved(**spec)
    ctx, edge = experiment.ctx(phase="train", round_no=1, n_clients=2, edge=0), experiment.algorithm.edge
    trained = models.read_state(models.build(experiment.spec.model.name, experiment.data.sample, 10, seed=99))
    state = edge.begin(ctx, edge.init(ctx), Broadcast(model=experiment.initial)).state.replace(model=trained)
    trainer, tested = (
        trainer_for(experiment, Task(kind="evaluate"), experiment.seat(0).train, experiment.population.edges[0].test),
        list[int](),
    )
    received, after = trainer.evaluate(experiment.initial), trainer.evaluate(trained)
    mine = trained if own == "trained" else experiment.initial
    first, second = (trainer.evaluate(mine, part.samples) for part in experiment.population.test_sets["union"])
    test = LocalTrainer.evaluate

    def counted(*args: Any, **more: Any) -> Any:
        tested.append(1)
        return test(*args, **more)

    monkeypatch.setattr(LocalTrainer, "evaluate", counted)
    found = own_scores(experiment, ctx, state, 0, lambda: False)
    assert found == (received, after if own == "trained" else received, {"union": first + second})
    assert len(tested) == n_tests


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("when", ["once", "load"])
async def test_training_on_augmented_images_does_not_depend_on_hosts(when: str) -> None:
    augment = {"name": "randaugment", "when": when}
    here = await ran(spec_of(augment=augment), agent_devices=ROOMS)
    there = tried(**spec_of(augment=augment))
    plain = await ran(spec_of(), agent_devices=ROOMS)
    assert flat.same_bits(here.model, there.model)
    assert here.info.model_sha256 != plain.info.model_sha256
    sums, bare = here.figures("pixels"), plain.figures("pixels")
    for seat in range(3):
        assert bare[seat][0] == pytest.approx(bare[seat][1])
        assert sums[seat][0] != pytest.approx(bare[seat][0])
        assert (sums[seat][0] == pytest.approx(sums[seat][1])) == (when == "once")


async def test_an_unknown_test_set_is_refused_at_once_by_the_field(tmp_path: Path) -> None:
    async with federation(tmp_path, agent_devices=ROOMS) as fed:
        refused = await fed.client.post("/runs", json={"spec": spec_of(test_on=["unseen"])})
    assert (refused.status_code, refused.json()["field"]) == (422, "test_on")
    assert refused.json()["detail"] == "test_on unseen: the test sets here are union"
