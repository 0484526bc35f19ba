"""Groups of clients and the spread of their accuracies, as text and as pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.core.clustering import average_linkage, cosine_distances
from shared.core.scores import Spread
from shared.plots.groups import newest_grouping
from shared.results.folder import read_rounds, read_run
from shared.results.reader import read_history
from shared.results.report.figures import pictures
from tests.strata.conftest import Strata
from tests.strata.samples import a_round, put_run

VECTORS = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]
USERS = [f"edge-{n}" for n in range(4)]
SPREAD = Spread.of([0.5, 0.9, 0.7, 0.8, 0.6])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run that clustered in round 2 and placed a late client in round 3."""
    apart = cosine_distances(np.array(VECTORS))
    tree: dict[str, Any] = {"users": USERS, "linkage": average_linkage(apart).tolist(), "threshold": 0.1}
    groups = [["edge-0", "edge-1"], ["edge-2", "edge-3"]]
    later = {"threshold": 0.1, "groups": [*groups, ["edge-4"]]}
    spreads = {"own": SPREAD, "received": Spread.of([0.4])}
    rounds = [
        a_round(1, clients=spreads),
        a_round(2, clients=spreads, figures={"0": {"group": None}, "cloud": {**tree, "groups": groups}}),
        a_round(3, clients=spreads, figures={"cloud": later}),
        a_round(3, kind="evaluate", clients=spreads, figures={}),
    ]
    put_run(tmp_path / "r9", rounds, algorithm="dtpfl", clients=spreads)
    return tmp_path


def test_spread_is_what_a_box_plot_shows() -> None:
    known = {"n": 5, "mean": 0.7, "min": 0.5, "q1": 0.6, "median": 0.7, "q3": 0.8, "max": 0.9}
    known |= {"worst_decile": 0.5, "variance": 0.02}
    assert SPREAD.model_dump() == pytest.approx(known)
    alone = dict.fromkeys(("mean", "min", "q1", "median", "q3", "max", "worst_decile"), 0.25)
    assert Spread.of([0.25]) == Spread(n=1, variance=0.0, **alone)


@pytest.mark.whole
@pytest.mark.integration
def test_spreads_and_groups_are_read_back_and_drawn(folder: Path, strata: Strata) -> None:
    assert read_run(folder / "r9").clients["own"] == SPREAD
    rounds = read_rounds(folder / "r9")
    assert [row.clients["own"] for row in rounds] == [SPREAD] * 4
    found = newest_grouping(rounds)
    assert found is not None
    assert (found.round_no, found.groups[-1]) == (3, ("edge-4",))
    drawn = json.loads(strata("show", "r9", "--plots", "--runs-dir", folder, "--format", "json").out)
    assert {"clients.png", "groups.png"} <= {Path(path).name for path in drawn}


def test_show_prints_the_groups_and_the_spread(folder: Path, strata: Strata) -> None:
    result = strata("show", "r9", "--runs-dir", folder)
    assert result.code == 0
    assert "70.00 % (mean of 5, 50.00 % to 90.00 %; worst decile 50.00 %, variance 0.02)" in result.out
    assert "edge-2 edge-3" in result.out
    assert "edge-4" in result.out


def test_groups_at_other_thresholds_follow_from_the_record(folder: Path, strata: Strata) -> None:
    result = strata("groups", "r9", "--at", 0.001, "--at", 0.1, "--at", 1, "--runs-dir", folder, "--format", "json")
    assert [found["groups"] for found in json.loads(result.out)] == [
        [["edge-0"], ["edge-1"], ["edge-2"], ["edge-3"]],
        [["edge-0", "edge-1"], ["edge-2", "edge-3"]],
        [USERS],
    ]
    assert "edge-0 edge-1" in strata("groups", "r9", "--runs-dir", folder).out


def test_run_without_clusters_is_noted(tmp_path: Path, strata: Strata) -> None:
    put_run(tmp_path / "r8", [a_round(1)])
    result = strata("groups", "r8", "--runs-dir", tmp_path)
    assert result.code == 1
    assert "run r8 has not clustered its clients" in result.err
    names = [picture.name for picture, _ in pictures(tmp_path / "r8", read_history(tmp_path / "r8"))]
    assert "accuracy" in names
    assert not {"clients", "groups"} & {*names}
