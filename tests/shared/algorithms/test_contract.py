"""The contract of all algorithms, the probes included."""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch

import shared.algorithms
import tests.probes
from cloud_server.runs.checkpoint import Checkpoint
from shared.core.records import Record
from shared.core.tensor_records import ModelState, TensorMap
from shared.core.update_annotations import Mean
from shared.federation.experiment import Experiment
from shared.federation.hooks import Algorithm
from shared.federation.messages import Contribution
from shared.federation.registry import all_algorithms, load_algorithm
from shared.wire import codec
from strata.checks import algorithm_rounds, algorithm_value
from strata.checks.monitor import Monitor, leaves, with_monitor
from strata.checks.tried_rounds import TriedRounds
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Tried, ended, federation, new_folder, tried

PRODUCT = [m.name for m in pkgutil.iter_modules(shared.algorithms.__path__) if not m.name.startswith("_")]
FEDERATED = [name for name in PRODUCT if name != "local_sgd"]
"""The algorithms whose updates change a global model."""
NAMES = [*PRODUCT, *(m.name for m in pkgutil.iter_modules(tests.probes.__path__))]
FIRST = ("probe_collect", "probe_seat", "probe_edge", "bofl", "dtpfl", "scaffold", "lafl_cpn", "t_fedavg")
"""Those that between them have all that hooks can do: phases, reports, states and messages of each client."""
ORDERED = sorted(NAMES, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def spec_of(name: str, **more: Any) -> dict[str, Any]:
    """A small spec that suits the algorithm."""
    spec = {
        "algorithm": name,
        "data": {"name": "digits", "n_train": 200, "n_test": 50},
        "num_devices": 4,
        "num_edges": 2,
        "num_rounds": 2,
        "lr": 0.1,
    }
    return {**spec, **load_algorithm(name).needs, **more}


# ---- what is watched


@contextmanager
def monitoring(algorithm: Algorithm) -> Iterator[Monitor]:
    """Monitors the runs in this context, which use this algorithm."""
    monitor, encode = Monitor(), codec.encode
    monitored = with_monitor(algorithm, monitor)

    def noted(record: Record) -> codec.Body:
        body = encode(record)
        monitor.encoded.append((record, bytes(body.join())))
        return body

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shared.federation.experiment.load_algorithm", lambda wanted: monitored)
        patch.setattr(codec, "encode", noted)
        yield monitor


@cache
def tried_as_users_do(name: str) -> TriedRounds:
    """Two monitored rounds in one process, as `strata check` runs them."""
    return algorithm_rounds.tried(load_algorithm(name), new_folder(), monitored=True)


# ---- the value


@pytest.mark.parametrize("name", NAMES)
def test_the_value_is_found_by_its_name_and_keeps_its_contract(name: str) -> None:
    algorithm = load_algorithm(name)
    assert all_algorithms()[name] is algorithm
    assert algorithm.name == name
    with pytest.raises(FrozenInstanceError):
        algorithm.name = "other"  # type: ignore[misc]
    algorithm_value.hooks_keep_no_state(algorithm)
    algorithm_value.hooks_name_their_records(algorithm)
    algorithm_value.parameters_have_defaults(algorithm)


def test_update_field_without_an_aggregation_rule_is_refused() -> None:
    class Silent(Record):
        delta: Annotated[ModelState, Mean()]
        scores: dict[str, float]

    with pytest.raises(TypeError, match=r"Silent\.scores has no aggregation rule"):
        Algorithm(name="silent", paper="none", update=Silent)


@pytest.mark.parametrize("name", PRODUCT)
def test_docstring_cites_the_paper_with_the_number_of_what_is_implemented(name: str) -> None:
    text = importlib.import_module(f"shared.algorithms.{name}").__doc__ or ""
    year = re.search(r"\b(19|20)\d\d\b", text)
    assert year, "no year"
    assert re.search(r"\b(algorithm|equation|eq\.)\s*\(?\d", text), "no number of an algorithm or equation"
    assert year[0] in load_algorithm(name).paper


# ---- what rounds show


@pytest.mark.matrix(len(FIRST))
@pytest.mark.parametrize("name", ORDERED)
def test_hooks_are_pure_and_all_that_is_declared_is_used(name: str) -> None:
    """Every call of a hook is repeated; each declared record is sent or kept within two rounds, as it was encoded."""
    done = tried_as_users_do(name)
    algorithm_rounds.hooks_are_pure(done)
    algorithm_rounds.every_declared_type_is_used(done.experiment.algorithm, done.monitor)


@pytest.mark.matrix(len(FIRST))
@pytest.mark.parametrize("name", ORDERED)
def test_arrival_order_changes_nothing(name: str) -> None:
    """The updates of a wave give the same bytes when summed in every order and by halves."""
    done = tried_as_users_do(name)
    items = [item for wave in done.sent for item in wave][:4]
    assert len(items) == 4
    algorithm_rounds.order_changes_nothing(done.experiment, items)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ORDERED)
def test_the_seed_decides_the_bits(name: str) -> None:
    done, other = tried_as_users_do(name), tried(**spec_of(name, seed=1))
    assert leaves(other.state) != leaves(done.state)


def decoder(experiment: Experiment, record: Record) -> Any:
    """Returns the type as which the receiver decodes a record."""
    generic: Any = Checkpoint
    bodies = {
        "VisitOrder": experiment.wire_types.visit_order,
        "VisitAnswer": experiment.wire_types.visit_answer,
        "UploadAnswer": experiment.wire_types.upload_answer,
        "RoundOrder": experiment.wire_types.round_order,
        "RoundAnswer": experiment.wire_types.round_answer,
        "Committed": generic[experiment.algorithm.cloud_state],
    }
    return bodies.get(type(record).__name__.partition("[")[0], type(record))


def travels(experiment: Experiment, monitor: Monitor) -> None:
    """Asserts that hooks were pure in a run, and that each record is the same after it was encoded and decoded."""
    assert monitor.faults == []
    for record, body in monitor.encoded:
        back = codec.decode(decoder(experiment, record), body, model=experiment.initial)
        assert bytes(codec.encode(back).join()) == body, type(record)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", ORDERED)
async def test_the_tiers_give_the_bits_of_the_hooks_alone(name: str, tmp_path: Path) -> None:
    """Whichever agents host the seats. Global random streams are neither used nor changed."""
    torch.manual_seed(4711)  # but every visit seeds torch's default generator
    with monitoring(load_algorithm(name)) as monitor:
        async with federation(tmp_path, agent_devices=(3, 1), order=(1, 0)) as fed:
            run_id = await fed.submit(spec_of(name))
            before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
            done = await ended(fed, run_id)
            assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    travels(done.experiment, monitor)
    if name != "probe_edge":  # whose edges share samples with their workers, which the hooks alone have not
        assert leaves(done.state) == leaves(tried_as_users_do(name).state)


# ---- buffers

STATISTICS = ("features.1.running_mean", "features.1.running_var")
COUNTER = "features.1.num_batches_tracked"


def tensors_of(item: Contribution[Any]) -> TensorMap:
    """The tensors of an update: a change of the model, or a model."""
    found: TensorMap = item.update.delta if hasattr(item.update, "delta") else item.update.model
    return found


def normalised(name: str, policy: Any) -> tuple[Tried, list[Contribution[Any]], list[Any]]:
    """Two rounds on a model with batch-norm: the run, both rounds' updates, the device states.

    Whatever is done with buffers, integers among them are not averaged.
    """
    with monitoring(replace(load_algorithm(name), buffers=policy)) as monitor:
        done = tried(**spec_of(name, model="conv_bn", batch_size=25))
    assert monitor.faults == []
    sent = [item for wave in done.sent for item in wave]
    assert all(COUNTER not in tensors_of(item) for item in sent)
    assert (done.model[COUNTER].dtype, done.model[COUNTER].item()) == (torch.int64, 0)
    if name in FEDERATED:
        assert len(sent) == 4 * sum(phase.num_rounds for phase in done.experiment.phases)
        assert not torch.equal(done.model["features.0.weight"], done.experiment.initial["features.0.weight"])
    kept = [record for record, _ in monitor.encoded if type(record) is done.experiment.algorithm.device_state]
    collecting = done.experiment.phases[0].kind == "collect"
    return done, sent, kept[4 * collecting :]


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", [name for name in FEDERATED if name != "fedasync"])
def test_averaged_buffers_are_the_weighted_mean(name: str) -> None:
    """Of all whose updates are changes of the model."""
    done, sent, states = normalised(name, "average")
    for key in STATISTICS:
        trained = [item for item in sent if item.update.delta]  # not in a phase of local training
        mean = sum(flat.mean_of_round(trained[at : at + 4], key) for at in range(0, len(trained), 4))
        assert torch.allclose(done.model[key].double(), done.experiment.initial[key] + mean, atol=1e-6)
        assert flat.distance({key: done.model[key]}, {key: done.experiment.initial[key]}) > 0.01
    assert not any(getattr(state, "buffers", {}) for state in states)


def check_buffers_at_home(done: Tried, sent: list[Contribution[Any]]) -> None:
    """Asserts that no update has buffers, and that those of the global model are the initial ones."""
    assert all(not tensors_of(item).keys() & {*STATISTICS, COUNTER} for item in sent)
    assert flat.same_bits(*({key: model[key] for key in STATISTICS} for model in (done.model, done.experiment.initial)))


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", PRODUCT[3:] + PRODUCT[:3])
def test_local_buffers_stay_with_the_seat_between_rounds(name: str) -> None:
    """50 samples in batches of 25 pass the model twice a round: after two rounds a seat's counter stands at 4."""
    done, sent, states = normalised(name, "local")
    check_buffers_at_home(done, sent)
    passes = 20 if name == "per_fedavg" else 2  # ten steps, each with two passes
    assert sorted(state.buffers[COUNTER].item() for state in states) == [passes] * 4 + [2 * passes] * 4
    assert len({tuple(state.buffers[STATISTICS[0]].tolist()) for state in states}) == 8


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", PRODUCT[6:] + PRODUCT[:6])
def test_dropped_buffers_leave_no_trace(name: str) -> None:
    done, sent, states = normalised(name, "drop")
    check_buffers_at_home(done, sent)
    assert not any(getattr(state, "buffers", {}) for state in states)
