"""DTPFL's page reads users' accuracies and the distances of their groups from a results folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import squareform

from benchmarks.papers.dtpfl import TABLE_2, users_and_groups
from shared.core.clustering import average_linkage
from shared.core.scores import Spread
from shared.results.folder import read_rounds
from tests.strata.samples import a_round, put_run

KIND = np.array([3, 0, 4, 2, 1, 0, 3, 2, 1, 4])  # of the users below; two of each of five kinds
USERS = [f"edge-{2 * kind + int(kind in KIND[:place])}" for place, kind in enumerate(KIND)]


def test_users_and_groups_are_read_by_round(tmp_path: Path) -> None:
    apart = np.where(KIND[:, None] == KIND[None, :], 0.1, 0.5)
    apart[1, 5] = apart[5, 1] = 0.2
    apart[0, 1] = apart[1, 0] = 0.4
    np.fill_diagonal(apart, 0)
    distances = squareform(apart)
    linkage = average_linkage(distances).tolist()
    cloud = {"groups": [USERS[:4], USERS[4:]], "users": USERS, "distances": distances.tolist(), "linkage": linkage}
    rounds = [
        a_round(1, clients={"own": Spread.of([0.2, 0.6]), "received": Spread.of([0.1])}),
        a_round(2, clients={"own": Spread.of([0.3, 0.7]), "received": Spread.of([0.1])}, figures={"cloud": cloud}),
    ]
    folder = put_run(tmp_path / "r1", rounds, accuracy_of="mean over clients", clients={"own": Spread.of([0.5, 0.9])})
    found = users_and_groups(folder, read_rounds(folder))
    assert list(found["users"]) == pytest.approx([0.4, 0.7])  # the last is that at the end of the run
    assert (found["users_least"], found["users_best"]) == ([0.2, 0.5], [0.6, 0.9])
    assert (found["groups"], found["within"], found["between"]) == ([None, 2], [None, 0.2], [None, 0.4])
    assert [found[f"groups_at_{threshold}"] for threshold in TABLE_2] == [[None, n] for n in (5, 5, 5, 6, 10, 10)]


def test_of_a_global_model_the_received_is_what_users_use(tmp_path: Path) -> None:
    rounds = [a_round(1, clients={"own": Spread.of([0.9]), "received": Spread.of([0.1])})]
    clients = {"own": Spread.of([0.9]), "received": Spread.of([0.3])}
    folder = put_run(tmp_path / "r1", rounds, accuracy_of="global model", clients=clients)
    found = users_and_groups(folder, read_rounds(folder))
    assert found == {"users": [0.3], "users_least": [0.3], "users_best": [0.3]}
