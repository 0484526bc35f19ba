"""The validation part, `stop.patience` and the best model, through the three tiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.torch import load, load_file

from cloud_server.runs.best import waited
from shared.core.errors import BadInput
from shared.federation.experiment import Experiment
from shared.federation.population import Population
from shared.federation.population.derivation import population
from shared.federation.spec_parser import parse_spec
from shared.run_records.metrics import ACCURACY, LOSS
from shared.run_records.runs import RunInfo
from shared.spec.ends import Stop
from shared.training import models
from shared.training.data.dataset import as_batch
from shared.training.data.open_data import open_data
from tests.data_cache import data_cache
from tests.federation import Federation, small_spec

pytestmark = pytest.mark.layout(agent_devices=(3, 3))

SHAKY = small_spec(
    num_rounds=12,
    lr=0.9,
    local_epochs=3,
    seed=3,
    partition={"name": "shards", "classes_per_device": 2},
    validation={"fraction": 0.3, "of": "server"},
)
"""A run whose accuracy rises and falls."""


def population_of(**changes: Any) -> Population:
    spec = parse_spec(small_spec(**changes)).resolved(n_devices=6, n_edges=2)
    return population(spec, open_data(spec.data, data_dir=None, cache_dir=data_cache()))


def positions(of: Population, part: str) -> list[int]:
    return [int(at) for each in of.validation if each.samples.part == part for at in each.samples.indices]


# ---- the part


@pytest.mark.parametrize("partition", [{"name": "iid"}, {"name": "sampled", "samples": 40}])
def test_a_part_of_the_servers_test_samples_is_no_ones_test_sample(partition: dict[str, Any]) -> None:
    whole = population_of(partition=partition)
    found = population_of(partition=partition, validation={"fraction": 0.2, "of": "server"})
    apart, tests = positions(found, "test"), found.test.indices.tolist()
    assert (len(apart), len(tests)) == (20, 80)
    assert sorted(apart + tests) == whole.test.indices.tolist()
    of_clients = {int(at) for seat in found.seats for at in seat.test.indices}
    assert of_clients.isdisjoint(apart)
    assert [seat.train.tolist() for seat in found.seats] == [seat.train.tolist() for seat in whole.seats]
    assert found.digest != whole.digest


@pytest.mark.parametrize("changes", [{}, {"held_out_fraction": 0.34}, {"test_fraction": 0.2}, {"client": "edge"}])
def test_a_part_of_the_clients_samples_neither_trains_nor_tests(changes: dict[str, Any]) -> None:
    whole = population_of(**changes)
    found = population_of(validation={"fraction": 0.25, "of": "clients"}, **changes)
    apart = positions(found, "train")
    trained = [int(at) for seat in found.seats for at in seat.train]
    tested = [int(at) for seat in found.seats if seat.test.part == "train" for at in seat.test.indices]
    assert sorted(apart + trained) == sorted(int(at) for seat in whole.seats for at in seat.train)
    assert set(apart).isdisjoint(tested)
    for seat, before in zip(found.seats, whole.seats, strict=True):
        assert seat.test.indices.tolist() == before.test.indices.tolist()
    owners = [part.owner for part in found.validation]
    assert owners == [f"{changes.get('client', 'device')}-{n}" for n in range(len(owners))] or found.held_out
    shares = [len(part.samples) for part in found.validation]
    assert sum(shares) == pytest.approx(0.25 * (len(apart) + len(trained)), abs=len(shares) / 2)
    again = population_of(validation={"fraction": 0.25, "of": "clients"}, **changes)
    assert positions(again, "train") == apart
    assert positions(population_of(validation={"of": "clients"}, seed=1, **changes), "train") != apart


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"validation": {"fraction": 0.001}}, "validation.fraction", "of 100 test samples leaves one"),
        ({"validation": {"fraction": 0.001, "of": "clients"}}, "validation.fraction", "each of 6 clients is none"),
        (
            {"validation": {"of": "clients"}, "partition": {"name": "sampled", "samples": 40}},
            "validation.of",
            "may have the same samples",
        ),
        ({"stop": {"patience": 3}}, "stop.patience", "stop.on: test compares them on the test set"),
        ({"stop": {"accuracy": 0.9, "on": "validation"}}, "stop.on", "needs a validation part"),
        ({"stop": {"patience": 3, "metric": "f1", "on": "test"}, "metrics": ["accuracy"]}, "stop.metric", "unknown"),
        ({"stop": {"min_delta": 0.1, "bytes": 5}}, "stop", "min_delta needs patience"),
        ({"validation": {}, "algorithm": "local_sgd"}, "validation", "no one model to choose"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        population_of(**changes)
    assert refused.value.field == field
    assert words in refused.value.detail


def test_a_spec_without_these_fields_is_as_it_was() -> None:
    fields = parse_spec(small_spec(stop={"accuracy": 0.9})).model_dump(mode="json")
    assert "validation" not in fields
    assert {"patience", "min_delta", "on"}.isdisjoint(fields["stop"])


# ---- patience


@pytest.mark.parametrize(
    ("values", "changes", "since", "expected"),
    [
        ([0.1, 0.3, 0.2, 0.3], {}, 0, (2, 2)),  # an equal value is no better
        ([0.1, 0.3, 0.2, 0.31], {}, 0, (0, 4)),
        ([0.1, 0.3, 0.2, 0.31], {"min_delta": 0.05}, 0, (2, 2)),
        ([0.5, 0.3, 0.2, 0.1], {}, 2, (2, 1)),  # those until round 2 do not count, but their best does
        ([0.5], {}, 0, (0, 1)),
    ],
)
def test_evaluations_that_are_not_better_are_counted(
    values: list[float], changes: dict[str, Any], since: int, expected: tuple[int, int]
) -> None:
    stop = Stop(patience=9, on="test", **changes)
    assert waited(list(enumerate(values, start=1)), stop, ACCURACY, since) == expected
    losses = [(round_no, -value) for round_no, value in enumerate(values, start=1)]
    assert waited(losses, stop, LOSS, since) == expected


# ---- runs


def curve(rows: list[Any]) -> list[float]:
    return [(row.evaluation or {})["validation"].accuracy or 0.0 for row in rows]


async def experiment_of(info: RunInfo) -> Experiment:
    return Experiment(info.spec, open_data(info.spec.data, data_dir=None, cache_dir=data_cache()))


def ends_at(values: list[float], patience: int) -> int:
    """The round after which a plain loop would stop."""
    best, n = -1.0, 0
    for round_no, value in enumerate(values, start=1):
        best, n = (value, 0) if value > best else (best, n + 1)
        if n == patience:
            return round_no
    return len(values)


@pytest.mark.whole
async def test_a_run_ends_by_its_validation_part_and_keeps_the_best_model(fed: Federation) -> None:
    whole = await fed.run(SHAKY)
    values = curve([await fed.round(whole.run, number) for number in range(1, 13)])
    end = ends_at(values, 2)
    best = 1 + int(np.argmax(values[:end]))
    assert 2 <= end < 12
    assert best < end
    info = await fed.run({**SHAKY, "stop": {"patience": 2}})
    assert (info.status, info.rounds) == ("completed", end)
    said = f"accuracy on the validation part has not become better than {values[best - 1]:.4g} after round {best}"
    assert (info.reason or "").startswith(said)
    last = await fed.round(info.run, end)
    assert last.model_sha256 == (await fed.round(whole.run, end)).model_sha256  # nothing else has changed
    assert info.best is not None
    assert (info.best.round_no, info.best.value, info.best.on) == (best, values[best - 1], "validation")
    assert info.models == ("global", "best")
    assert "validation: 30 of the test samples, which neither train nor test a model" in "\n".join(info.plan)
    body = (await fed.client.get(f"/runs/{info.run}/models/best")).content
    of_round = await fed.run({**SHAKY, "num_rounds": best})
    expected = (await fed.client.get(f"/runs/{of_round.run}/models/global")).content
    assert body == expected
    folder = fed.folder / "runs" / info.run
    assert load_file(folder / "model_best.safetensors").keys() == load(body).keys()
    assert (folder / "model_best.safetensors").read_bytes() == body
    assert (folder / "model.safetensors").read_bytes() != body
    # The value is that of the model on samples that are in no test set.
    experiment = await experiment_of(info)
    model, data = experiment.model.eval(), experiment.data
    models.write_state(model, load(body))
    (part,) = experiment.population.validation
    hits = model(as_batch(np.asarray(data.test_x)[part.samples.indices])).argmax(1).numpy()
    assert np.mean(hits == np.asarray(data.test_y)[part.samples.indices]) == info.best.value
    # Added rounds wait anew, but for a value better than the best so far.
    more = await fed.client.post(f"/runs/{info.run}/rounds", json={"num_rounds": 4, "stop": {"patience": 4}})
    assert more.status_code == 200
    longer = await fed.finish(info.run)
    assert longer.rounds == (end + 4 if max(values[end : end + 4]) <= values[best - 1] else longer.rounds)
    assert longer.model_sha256 == (await fed.round(whole.run, longer.rounds)).model_sha256
    assert longer.best is not None
    assert longer.best.round_no == 1 + int(np.argmax(values[: longer.rounds]))
    plain = await fed.run(small_spec())
    refused = await fed.client.post(f"/runs/{plain.run}/rounds", json={"num_rounds": 1, "stop": {"patience": 4}})
    assert (refused.status_code, refused.json()["field"]) == (422, "stop.patience")
    none = await fed.client.get(f"/runs/{plain.run}/models/best")
    assert none.status_code == 404
    assert "a best one is kept with `validation`" in none.json()["detail"]


@pytest.mark.whole
async def test_a_round_that_was_chosen_on_the_test_set_is_said_to_be(fed: Federation) -> None:
    spec = {name: value for name, value in SHAKY.items() if name != "validation"}
    info = await fed.run({**spec, "stop": {"patience": 1, "metric": "loss", "on": "test"}})
    losses = [(await fed.round(info.run, number)).loss or 0.0 for number in range(1, info.rounds + 1)]
    assert info.rounds == ends_at([100 - loss for loss in losses], 1) < 12
    assert (info.reason or "").startswith("loss on the test set has not become better")
    assert info.best is not None
    assert (info.best.on, info.best.metric.label, info.best.value) == ("test", "loss", min(losses))
    assert str(info.best).endswith("on the test set, on which it was chosen")


async def test_clients_samples_choose_the_best_round_of_an_asynchronous_run(fed: Federation) -> None:
    spec = {**SHAKY, "validation": {"fraction": 0.2, "of": "clients"}, "algorithm": "fedbuff", "num_rounds": 6}
    spec |= {"sync": {"edges": {"mode": "asynchronous"}}, "stop": {"patience": 6}}
    info = await fed.run(spec)
    rows = [await fed.round(info.run, number) for number in range(1, info.rounds + 1)]
    values = curve(rows)
    body = (await fed.client.get(f"/runs/{info.run}/models/best")).content
    assert info.best is not None
    assert info.best.round_no == 1 + int(np.argmax(values))
    experiment = await experiment_of(info)
    model, data = experiment.model.eval(), experiment.data
    models.write_state(model, load(body))
    places = np.concatenate([part.samples.indices for part in experiment.population.validation])
    predicted = model(as_batch(np.asarray(data.train_x)[places])).argmax(1).numpy()
    assert np.mean(predicted == np.asarray(data.train_y)[places]) == info.best.value


@pytest.mark.whole
async def test_the_best_model_survives_a_restart_of_the_cloud(fed: Federation) -> None:
    whole = await fed.run({**SHAKY, "num_rounds": 5})
    expected = (await fed.client.get(f"/runs/{whole.run}/models/best")).content
    run_id = await fed.start_and_pause({**SHAKY, "num_rounds": 5}, 3)
    paused = await fed.info(run_id)
    best = (await fed.client.get(f"/runs/{run_id}/models/best")).content
    assert paused.best is not None
    await fed.restart_cloud()
    assert (await fed.client.get(f"/runs/{run_id}/models/best")).content == best
    await fed.control(run_id, "resume")
    info = await fed.finish(run_id)
    assert (info.model_sha256, info.best) == (whole.model_sha256, whole.best)
    assert (await fed.client.get(f"/runs/{run_id}/models/best")).content == expected
