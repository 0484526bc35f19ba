"""ES-AFL through three real tiers: the same bits in any layout and after a restart; clients' test samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.by_hooks import ByHooks
from shared.core.tensor_records import TensorMap
from shared.federation.visits.trainer import trainer_for
from shared.training import models
from shared.training.evaluation import evaluate
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, ended, experiment_of, federation, ran

ROUNDS = 3


def spec_of(**more: Any) -> dict[str, Any]:
    """Returns a spec of five clients of which one never trains, a model with batch-norm, and distant chromosomes."""
    spec = {
        "algorithm": {"name": "es_afl", "params": {"sigma": 0.3}},
        "data": {"name": "digits", "n_train": 250, "n_test": 50},
        "partition": {"name": "iid", "quantity_skew": 0.5},
        "test_fraction": 0.2,
        "held_out_fraction": 0.2,
        "model": "conv_bn",
        "num_devices": 5,
        "num_edges": 1,
        "num_rounds": ROUNDS,
        "batch_size": 16,
        "lr": 0.1,
    }
    return {**spec, **more}


def same_state(one: Ended, other: Ended) -> bool:
    """Whether two runs left the same supernet, chromosomes, paths, step sizes and covariance, to the last bit."""
    assert len(one.state.searches) == 4
    assert any(search.won for search in one.state.searches.values())
    return (
        one.info.model_sha256 == other.info.model_sha256
        and one.state.searches == other.state.searches
        and one.state.covariance == other.state.covariance
        and one.state.choices == other.state.choices
    )


@pytest.mark.whole
async def test_supernet_and_searches_do_not_depend_on_edges_or_agents() -> None:
    one = await ran(spec_of(), n_edges=1, agent_devices=(5,))
    apart = await ran(spec_of(num_edges=3), n_edges=3, agent_devices=(1, 2, 2), order=(2, 0, 1))
    assert same_state(one, apart)
    assert {row.edge for row in apart.rounds[0].seats} == {"edge-1", "edge-2", "edge-3"}
    for name in ("child", "fitness", "n_weights", "multiply_adds"):
        assert one.figures(name) == apart.figures(name)
    assert len({tuple(wins) for wins in one.figures("child").values()}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
async def test_run_continued_by_new_services_has_the_same_result(rounds: int, tmp_path: Path) -> None:
    layout: dict[str, Any] = {"n_edges": 2, "agent_devices": (3, 2)}
    whole = await ran(spec_of(num_edges=2), **layout)
    async with federation(tmp_path, **layout) as fed:
        run_id = await fed.start_and_pause(spec_of(num_edges=2), rounds)
        await fed.restart(lambda: None)
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    assert same_state(whole, done)
    assert done.links() == whole.links()


def n_correct(done: Ended, model: TensorMap, part: str, indices: Any) -> int:
    """The score of a full-size model on some training or test images."""
    data, scratch = done.experiment.data, done.experiment.model
    models.write_state(scratch, model)
    images, labels = (data.train_x, data.train_y) if part == "train" else (data.test_x, data.test_y)
    return evaluate(scratch, images, labels, indices).n_correct


async def test_clients_test_the_winner_before_upload_and_held_out_clients_test_the_supernet(tmp_path: Path) -> None:
    """Runs the hooks without services; the winner's scores equal those in the run's rows."""
    done = await ran(spec_of(), n_edges=1, agent_devices=(5,))
    alone = ByHooks(experiment_of(done.experiment.spec, tmp_path))
    (outside,) = [seat for seat in done.experiment.population.seats if seat.role == "held_out"]
    others = [seat for seat in done.experiment.population.seats if seat.role == "train"]
    held = 250 - sum(len(seat.train) + len(seat.test.indices) for seat in others)
    assert (len(outside.train), len(outside.test.indices)) == (0, held)
    n_other = 0
    for detail in done.rounds:
        supernet = alone.cloud.model
        rows = {row.seat: row for row in detail.seats}
        right = n_correct(done, supernet, outside.test.part, outside.test.indices)
        row = rows[outside.number]
        assert (row.outcome, row.n_test) == ("evaluated", held)
        assert row.received_accuracy == pytest.approx(right / row.n_test)
        for number, local in alone.round().items():
            seat, row = alone.seats[number], rows[number]
            assert row.n_test == len(seat.test.indices)
            right = n_correct(done, supernet, seat.test.part, seat.test.indices)
            assert row.received_accuracy == pytest.approx(right / row.n_test)
            assert local.model is not None
            trainer = trainer_for(alone.experiment, alone._task(detail.round_no), seat.train, seat.test)
            assert row.own_accuracy == trainer.evaluate(local.model, seat.test).accuracy
            n_other += row.own_accuracy != row.received_accuracy
            assert row.figures["n_weights"] == sum(t.count_nonzero() for t in local.model.values() if t.dim() > 1)
    assert n_other > ROUNDS
    assert flat.same_bits(done.model, alone.cloud.model)
    final = done.info.final["held_out_received"]
    right = n_correct(done, done.model, outside.test.part, outside.test.indices)
    assert final.accuracy == pytest.approx(right / held)
