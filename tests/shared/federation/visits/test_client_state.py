"""A client's state between its visits: where it is kept, and what a seat finds that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import torch

from shared.federation.experiment import Experiment
from shared.federation.hooks import MaskOf, Mean, ModelState, Record
from shared.federation.visits.client_state import ClientStateAccess
from shared.storage.states import StateOwner, Version
from tests.fakes.memory_state_store import MemoryStateStore
from tests.probes.probe_counter import Counter
from tests.shared.algorithms.layouts import resolved


class Sparse(Record):
    """A state of which only what the mask keeps is written."""

    kept: Annotated[ModelState, Mean(per_position="mask")]
    mask: Annotated[ModelState, MaskOf()]


SEAT = StateOwner("r1", "seat 0")
FIRST, SECOND = Version(1), Version(2)


@pytest.fixture
def experiment(counter_algorithm: str) -> Experiment:
    data = {"name": "digits", "n_train": 40, "n_test": 10}
    return resolved(data=data, num_devices=1, num_edges=1, algorithm=counter_algorithm)


def access(experiment: Experiment, store: MemoryStateStore, base: Version | None, **more: Any) -> ClientStateAccess:
    return ClientStateAccess(experiment.algorithm, store, SEAT, base, **more)


def test_a_seat_before_its_first_visit_misses_nothing(experiment: Experiment) -> None:
    assert access(experiment, MemoryStateStore(), None).load() == (None, {}, False)


def test_a_seat_whose_state_is_gone_starts_anew_and_says_so(experiment: Experiment) -> None:
    assert access(experiment, MemoryStateStore(), FIRST).load() == (None, {}, True)


@pytest.mark.parametrize("with_residual", [False, True])
def test_a_seat_finds_the_state_of_the_visit_that_its_order_names(experiment: Experiment, with_residual: bool) -> None:
    store, kind = MemoryStateStore(), Counter
    state = kind(visits=3)
    residual = {"delta w": torch.tensor([0.5, -2.0])}
    access(experiment, store, None, with_residual=with_residual).save(FIRST, state, residual)
    access(experiment, store, FIRST, with_residual=with_residual).save(SECOND, kind(visits=4), {})
    found, memory, is_fresh = access(experiment, store, FIRST, with_residual=with_residual).load()
    assert (found, is_fresh) == (state, False)
    assert {name: tensor.tolist() for name, tensor in memory.items()} == (
        {"delta w": [0.5, -2.0]} if with_residual else {}
    )


def test_states_older_than_the_one_that_counts_are_dropped_by_the_next_visit(experiment: Experiment) -> None:
    store, kind = MemoryStateStore(), Counter
    for version, base in ((FIRST, None), (SECOND, FIRST), (Version(3), SECOND)):
        access(experiment, store, base).save(version, kind(visits=1), {})
    assert store.versions(SEAT) == [SECOND, Version(3)]


def test_states_from_which_a_repetition_may_begin_are_kept_and_those_of_its_own_visits_go(
    experiment: Experiment,
) -> None:
    """Rounds 1 to 3 with three visits in the third, which may be repeated from the end of the second."""
    store, last = MemoryStateStore(), SECOND
    access(experiment, store, None).save(FIRST, Counter(visits=1), {})
    access(experiment, store, FIRST).save(SECOND, Counter(visits=2), {})
    for edge_round in range(3):
        version = Version(3, edge_round)
        access(experiment, store, last, keep_from=SECOND if edge_round else None).save(version, Counter(visits=3), {})
        last = version
    assert store.versions(SEAT) == [SECOND, Version(3, 1), Version(3, 2)]


@pytest.mark.parametrize("with_residual", [False, True])
def test_a_sparse_state_is_read_back_although_other_tiers_may_send_none_without_a_model(with_residual: bool) -> None:
    algorithm: Any = SimpleNamespace(device_state=Sparse, device_remembers=True)
    store, mask = MemoryStateStore(), torch.tensor([0.0, 1.0, 0.0, 1.0])
    state = Sparse(kept={"w": torch.tensor([0.0, 7.0, 0.0, 9.0])}, mask={"w": mask})
    ClientStateAccess(algorithm, store, SEAT, None, with_residual).save(FIRST, state, {})
    found, _, is_fresh = ClientStateAccess(algorithm, store, SEAT, FIRST, with_residual).load()
    assert found.kept["w"].tolist() == [0, 7, 0, 9]
    assert not is_fresh
