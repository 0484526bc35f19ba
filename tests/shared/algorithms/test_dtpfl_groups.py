"""DTPFL's groups, hook by hook: against scipy, by hand, and with users that send incomplete or wrong layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from pydantic import ValidationError
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from shared.algorithms import dtpfl
from shared.algorithms.dtpfl import Change, Down, Federation, Sent, User
from shared.core.errors import NotFinite
from shared.core.tensor_records import TensorMap
from shared.federation.aggregation import Accumulator
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.spec_parser import parse_spec
from shared.wire import codec
from tests.shared.algorithms.layouts import resolved

CLOUD, EDGE = dtpfl.ALGORITHM.cloud, dtpfl.ALGORITHM.edge
Vector = npt.NDArray[np.float64]


def experiment_with(n_users: int, **params: Any) -> Experiment:
    """Returns an experiment of users with softmax regression on digits, whose only layer is the last."""
    algorithm = {"name": "dtpfl", "params": {"pretrain_rounds": 2, **params}}
    counts = {"num_edges": n_users, "num_devices": n_users, "num_rounds": 4}
    return resolved(algorithm=algorithm, client="edge", model="linear", **counts)


def ctx_of(experiment: Experiment, round_no: int = 2, **more: Any) -> Context:
    n_users = len(experiment.population.edges)
    return experiment.ctx(phase=experiment.phase_of(round_no).name, round_no=round_no, n_clients=n_users).at(**more)


def layers_of(vector: Vector) -> TensorMap:
    """Returns a last layer whose first elements are these; the others are 0."""
    row = torch.zeros(650)
    row[: len(vector)] = torch.from_numpy(vector)
    return {"head.weight": row[:640].reshape(10, 64), "head.bias": row[640:]}


def sent_by(vectors: Mapping[str, Sequence[float]], samples: int = 1) -> Change:
    """Returns the mean update of the last round of pre-training."""
    users = {user: Sent(layers=layers_of(np.array(v, np.float64)), samples=samples) for user, v in vectors.items()}
    return Change(delta={}, users=users)


def grouped(experiment: Experiment, update: Change, state: Federation | None = None, round_no: int = 2) -> Federation:
    ctx = ctx_of(experiment, round_no)
    found: Federation = CLOUD.aggregate(ctx, state or CLOUD.init(ctx, experiment.initial), update)
    return found


def members_of(state: Federation) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for user, name in state.groups.items():
        found.setdefault(name, []).append(user)
    return list(found.values())


AXES = {"edge-0": [1.0, 0.0], "edge-1": [2.0, 0.1], "edge-2": [0.0, 1.0]}
"""Two users that point almost the same way, and one at a right angle."""


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.8, 1.0, 2.0])
def test_groups_equal_scipys_on_the_vectors_that_were_sent(threshold: float) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(3, 30))[np.arange(12) % 3] + rng.normal(size=(12, 30))
    experiment = experiment_with(12, threshold=threshold)
    state = grouped(experiment, sent_by({f"edge-{n}": row.tolist() for n, row in enumerate(vectors)}))
    rounded = vectors.astype(np.float32).astype(np.float64)
    labels = fcluster(linkage(pdist(rounded, "cosine"), "average"), threshold, "distance")
    theirs = [[f"edge-{n}" for n in np.flatnonzero(labels == label)] for label in dict.fromkeys(labels)]
    assert members_of(state) == theirs


def test_first_layers_of_a_group_are_the_mean_by_samples() -> None:
    """(9) by hand: 3 of [1, 0] and 1 of [2, 0.1] are [1.25, 0.025]."""
    update = sent_by(AXES)
    update = update.replace(users={**update.users, "edge-0": update.users["edge-0"].replace(samples=3)})
    state = grouped(experiment_with(3, threshold=0.1), update)
    assert members_of(state) == [["edge-0", "edge-1"], ["edge-2"]]
    mean = state.personal[state.groups["edge-0"]]["head.weight"]
    assert mean[0, :2].tolist() == pytest.approx([1.25, 0.025])
    assert state.personal[state.groups["edge-2"]]["head.weight"][0, :2].tolist() == [0.0, 1.0]


def test_one_user_is_a_group_and_a_second_forms_its_own_with_auto() -> None:
    """Without another user to compare with, a user is its own group."""
    experiment = experiment_with(2, threshold="auto")
    state = grouped(experiment, sent_by({"edge-0": [1.0, 0.0]}))
    figures = CLOUD.figures(ctx_of(experiment), state)
    assert (figures["groups"], figures["linkage"], figures["threshold"]) == ([["edge-0"]], [], 0.0)
    later = grouped(experiment, sent_by({"edge-1": [1.0, 0.5]}), state, round_no=4)
    assert members_of(later) == [["edge-0"], ["edge-1"]]
    assert CLOUD.figures(ctx_of(experiment, 4), later)["groups"] == [["edge-0"], ["edge-1"]]


def test_late_users_are_placed_one_after_another() -> None:
    """Of two late users of a new kind the first founds a group; the second joins it and starts from its layers."""
    experiment = experiment_with(6, threshold=0.1)
    state = grouped(experiment, sent_by(AXES))
    late = {"edge-5": [-1.0, 0.1], "edge-4": [-1.0, 0.0], "edge-3": [0.1, 3.0]}
    state = grouped(experiment, sent_by(late), state, round_no=4)
    assert members_of(state) == [["edge-0", "edge-1"], ["edge-2", "edge-3"], ["edge-4", "edge-5"]]
    down: Down = CLOUD.broadcast(ctx_of(experiment, 5), state, 5, [])
    assert down.group == state.groups["edge-4"]
    assert down.model["head.weight"][0, :2].tolist() == [-1.0, 0.0]


# ---- invalid updates


def test_last_layer_of_zeros_is_similar_to_no_other() -> None:
    state = grouped(experiment_with(3, threshold=0.9), sent_by({**AXES, "edge-2": [0.0, 0.0]}))
    assert members_of(state) == [["edge-0", "edge-1"], ["edge-2"]]


def test_user_with_incomplete_layers_has_no_group_and_does_not_affect_others() -> None:
    experiment, update = experiment_with(3, threshold=0.1), sent_by(AXES)
    half = Sent(layers={"head.bias": torch.zeros(10)}, samples=1)
    stranger = {"edge-7": update.users["edge-2"], "nobody": update.users["edge-2"]}
    state = grouped(experiment, update.replace(users={**update.users, **stranger, "edge-2": half}))
    assert members_of(state) == [["edge-0", "edge-1"]]
    assert CLOUD.broadcast(ctx_of(experiment, 3), state, 2, []).group is None


def test_layers_of_another_shape_are_refused_on_arrival() -> None:
    experiment = experiment_with(3)
    wrong = Sent(layers={"head.weight": torch.zeros(10, 63), "head.bias": torch.zeros(10)}, samples=1)
    body = bytes(codec.encode(Change(delta={}, users={"edge-0": wrong})).join())
    with pytest.raises(Exception, match=r"head\.weight"):
        codec.decode(Change, body, model=experiment.initial)


def test_layers_that_are_not_finite_and_no_samples_are_refused() -> None:
    experiment = experiment_with(3)
    fold = Accumulator(Change, experiment.fixed_point, model=experiment.shapes)
    with pytest.raises(NotFinite, match="users"):
        fold.add(sent_by({"edge-0": [float("nan")]}), 1)
    with pytest.raises(ValidationError):
        Sent(layers={}, samples=0)


# ---- rounds of pre-training


@pytest.mark.parametrize(
    ("pretrain_rounds", "num_rounds", "lengths"), [(2, 5, [2, 3]), (0, 3, [0, 3]), (4, 4, [4, 0]), (10, 4, [4, 0])]
)
def test_run_has_as_many_rounds_as_its_spec_says(pretrain_rounds: int, num_rounds: int, lengths: list[int]) -> None:
    algorithm = {"name": "dtpfl", "params": {"pretrain_rounds": pretrain_rounds}}
    spec = parse_spec({"algorithm": algorithm, "client": "edge", "num_rounds": num_rounds})
    found = dtpfl.phases(spec, dtpfl.Params(pretrain_rounds=pretrain_rounds))
    assert [(phase.name, phase.num_rounds) for phase in found] == list(zip(("pretrain", "group"), lengths, strict=True))


@pytest.mark.parametrize(
    ("round_no", "rounds_before", "n_samples", "sends"),
    [(1, 0, 9, False), (2, 1, 9, True), (2, 0, 9, True), (2, 1, 0, False), (3, 0, 9, False), (3, 1, 9, True)],
    ids=["first", "last", "last, missed one", "nobody answered", "late, one round", "late, two rounds"],
)
def test_user_requests_a_group_with_the_others_or_after_as_many_rounds(
    round_no: int, rounds_before: int, n_samples: int, sends: bool
) -> None:
    experiment = experiment_with(3)
    ctx = ctx_of(experiment, round_no, edge=1, n_samples=n_samples)
    begun = EDGE.begin(ctx, User(rounds=rounds_before), Down(model=experiment.initial))
    finish = EDGE.finish(ctx, begun.state)
    update: Any = finish.update
    assert {user: each.samples for user, each in update.users.items()} == ({"edge-1": 9} if sends else {})
    assert finish.figures["pretrained"] == rounds_before + (n_samples > 0)
