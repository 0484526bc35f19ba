"""The visits of an order are run in groups, which change neither bits nor what a failure costs."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from shared.core.errors import NotFinite
from shared.federation.experiment import Experiment
from shared.federation.messages import Kind, Task, Visit, VisitOrder, WaveId
from shared.federation.visits import visit as visits
from shared.federation.visits.open_visit import begin_visit
from shared.storage.states import StateOwner, Version
from shared.wire import codec
from tests.fakes.memory_state_store import MemoryStateStore
from tests.shared.algorithms.layouts import resolved

SEATS = (0, 1, 2, 3, 4)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    data = {"name": "digits", "n_train": 60, "n_test": 20}
    return resolved(data=data, num_devices=5, num_edges=1, algorithm="scaffold")


def order_of(experiment: Experiment, kind: Kind = "train") -> VisitOrder[Any]:
    algorithm, ctx = experiment.algorithm, experiment.ctx(phase="", round_no=1, n_clients=len(SEATS))
    state = algorithm.cloud.init(ctx, experiment.initial)
    broadcast = algorithm.cloud.broadcast(ctx, state, 0, list(experiment.population.seats))
    at_edge = ctx.at(edge=0)
    begun = algorithm.edge.begin(at_edge, algorithm.edge.init(at_edge), broadcast).state
    message = algorithm.edge.dispatch(at_edge, begun, experiment.seat(0))
    task = Task(kind=kind, epochs=1, batch_size=8)
    return VisitOrder[Any](
        stage=WaveId(run_id="r", round_no=1),
        spec=experiment.spec,
        population=experiment.population.digest,
        phase="",
        n_clients=len(SEATS),
        edge=0,
        hold=False,
        messages=(message,),
        visits=tuple(Visit(seat=seat, task=task, message=0) for seat in SEATS),
    )


def answer_in_groups(experiment: Experiment, n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[bytes]]:
    """The digest of the answer, and the devices' states."""
    monkeypatch.setattr(visits, "GROUP_BYTES", n_bytes)
    states, ended = MemoryStateStore(), list[int]()
    found = visits.run_visits(
        experiment, order_of(experiment), states, on_end=lambda outcome, wall_s: ended.append(outcome.seat)
    )
    assert ended == [*SEATS]
    kept = [states.load(StateOwner("r", f"seat-{seat}"), Version(1)) for seat in SEATS]
    return codec.encode(found.answer()).digest(), [state for state in kept if state is not None]


def test_groups_of_any_size_give_the_same_bits(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    model_bytes = visits.MODELS_A_VISIT * sum(tensor.nbytes for tensor in experiment.initial.values())
    alone = answer_in_groups(experiment, 0, monkeypatch)
    assert len(alone[1]) == len(SEATS)
    assert answer_in_groups(experiment, 2 * model_bytes, monkeypatch) == alone
    assert answer_in_groups(experiment, 100 * model_bytes, monkeypatch) == alone


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_what_hooks_draw_after_training_is_the_same_in_groups_of_any_size(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    data = {"name": "digits", "n_train": 60, "n_test": 20}
    adapts = resolved(data=data, num_devices=5, num_edges=1, algorithm="per_fedavg")  # trains in `personalise`, too
    features: Any = adapts.model.features
    features.append(nn.Dropout(0.5))

    def answer(n_bytes: int) -> str:
        monkeypatch.setattr(visits, "GROUP_BYTES", n_bytes)
        found = visits.run_visits(
            adapts, order_of(adapts, kind), MemoryStateStore(), on_end=lambda outcome, wall_s: None
        )
        return codec.encode(found.answer()).digest()

    assert answer(0) == answer(2**40) == answer(2**40)


@pytest.mark.parametrize("step", ["begin", "train", "end"])
def test_a_visit_that_fails_at_any_step_fails_alone(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def failing(*_: Any) -> Any:
        raise NotFinite("a device that fails")

    def begin_some(experiment: Experiment, order: Any, visit: Visit, *more: Any) -> Any:
        opened = begin_visit(experiment, order, visit, *more)
        if visit.seat != 2:
            return opened
        if step == "begin":
            failing()
        object.__setattr__(opened, step, failing)
        return opened

    monkeypatch.setattr(visits, "begin_visit", begin_some)
    answer = visits.run_visits(experiment, order_of(experiment), MemoryStateStore()).answer()
    failed = {outcome.seat: outcome.failure.reason for outcome in answer.outcomes if outcome.failure is not None}
    assert failed == {2: "not_finite"}
    assert [outcome.seat for outcome in answer.outcomes] == [*SEATS]
    sent = {*answer.uploads.link_bytes} or {item.seat for item in answer.uploads.contributions}
    assert sent == {*SEATS} - {2}
