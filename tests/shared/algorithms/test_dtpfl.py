"""DTPFL compared with the plain reference, FedPer, FedAvg and scipy; its groups, messages, states and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load as load_model
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from strata.checks.monitor import leaves
from tests.federation import EDGE_PORT, Federation, Gate
from tests.shared.algorithms import flat, plain_dtpfl
from tests.shared.algorithms.layouts import Ended, Tried, ended, federation, ran, results_so_far, tried

FOUR: dict[str, Any] = {"n_edges": 4, "agent_devices": (5, 3)}
HEAD_BYTES, BASE_BYTES, AROUND = 4 * (64 * 10 + 10), 4 * (64 * 64 + 64), 2_500


def spec_of(params: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Returns a spec of four users of two groups of classes, two devices each; without parameters FedAvg's."""
    spec = {
        "algorithm": {"name": "fedavg"} if params is None else {"name": "dtpfl", "params": params},
        "data": {"name": "digits", "n_train": 320, "n_test": 80},
        "partition": {"name": "by_group", "n_groups": 2, "gamma": 0.9},
        "client": "edge",
        "num_devices": 8,
        "num_edges": 4,
        "num_rounds": 4,
        "batch_size": 16,
        "lr": 0.1,
    }
    return {**spec, **more}


def groups_of(done: Ended | Tried) -> list[list[int]]:
    """Returns the groups of a run, by lowest member."""
    found: dict[str, list[int]] = {}
    for user, name in done.state.groups.items():
        found.setdefault(name, []).append(int(user.removeprefix("edge-")))
    return sorted(sorted(members) for members in found.values())


def own_models(done: Ended | Tried) -> dict[int, Any]:
    ctx = done.experiment.ctx(phase="group", round_no=done.experiment.spec.num_rounds, n_clients=4)
    models = done.experiment.algorithm.cloud.models(ctx, done.state)
    return {int(name.removeprefix("edge-")): model for name, model in models.items() if name != "global"}


def largest_difference(done: Ended | Tried, models: dict[int, Any]) -> float:
    """Returns the largest difference of any user's model from another run's, or the reference's."""
    mine = own_models(done)
    assert mine.keys() == models.keys()
    return max(flat.distance(mine[user], models[user]) for user in mine)


def cloud_figures(done: Ended, round_no: int) -> dict[str, Any]:
    found: dict[str, Any] = done.rounds[round_no - 1].figures.get("cloud", {})
    return found


# ---- comparison with the reference


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("params", "partition"),
    [
        ({"pretrain_rounds": 2, "threshold": 0.02}, {"name": "by_group", "n_groups": 2, "gamma": 0.9}),
        ({"pretrain_rounds": 1, "threshold": 0.0285, "personal_layers": 2}, {"name": "dirichlet", "alpha": 0.5}),
    ],
    ids=["last layer", "all layers, uneven sizes"],
)
async def test_run_has_the_papers_two_phases(params: dict[str, Any], partition: dict[str, Any]) -> None:
    done = await ran(spec_of(params, partition=partition), **FOUR)
    options = {"personal_layers": 1, **params}
    plain = plain_dtpfl.run(done.experiment, num_rounds=4, **options)
    assert groups_of(done) == plain.groups
    assert 1 < len(plain.groups or ()) < 4
    assert largest_difference(done, plain.models) < 2e-6
    assert flat.distance(done.model, plain.base) < 2e-6
    held = [plain_dtpfl.accuracy(done.experiment, user, model) for user, model in plain.models.items()]
    assert done.info.accuracy == pytest.approx(sum(held) / 4, abs=0.02)
    alone = plain_dtpfl.run(done.experiment, num_rounds=4, **{**options, "threshold": 0.0})
    assert largest_difference(done, alone.models) > 1e-3


@pytest.mark.whole
def test_threshold_zero_is_fedper() -> None:
    done, fedper = (
        tried(**spec_of({"pretrain_rounds": 2, "threshold": 0})),
        tried(**spec_of(None, algorithm="fedper")),
    )
    assert groups_of(done) == [[0], [1], [2], [3]]
    assert flat.distance(done.model, fedper.model) < 1e-6


def test_threshold_two_is_fedavg_from_the_clustered_start() -> None:
    params = {"pretrain_rounds": 2, "threshold": 2}
    start, done = own_models(tried(**spec_of(params, num_rounds=2))), tried(**spec_of(params))
    assert groups_of(done) == [[0, 1, 2, 3]]
    assert len(start) == 4
    assert all(flat.same_bits(start[0], model) for model in start.values())
    after = plain_dtpfl.run(done.experiment, personal_layers=0, num_rounds=4, start=start[0], first=3)
    assert largest_difference(done, dict.fromkeys(range(4), after.base)) < 1e-6
    fedavg = plain_dtpfl.run(done.experiment, personal_layers=0, num_rounds=4)
    assert largest_difference(done, dict.fromkeys(range(4), fedavg.base)) > 1e-5


def test_without_pretraining_and_one_group_it_is_fedavg() -> None:
    done, fedavg = tried(**spec_of({"pretrain_rounds": 0, "threshold": 2})), tried(**spec_of(None))
    assert largest_difference(done, dict.fromkeys(range(4), fedavg.model)) < 1e-6
    assert groups_of(done) == [[0, 1, 2, 3]]


def test_batch_norm_of_a_personal_layer_stays_in_its_group() -> None:
    params = {"pretrain_rounds": 1, "threshold": "auto", "personal_layers": 2}
    done = tried(**spec_of(params, model="conv_bn", num_rounds=2))
    key, groups, models = "features.1.running_mean", groups_of(done), own_models(done)
    assert len(groups) > 1
    assert flat.same_bits({key: done.model[key]}, {key: done.experiment.initial[key]})
    assert len({tuple(model[key].tolist()) for model in models.values()}) == len(groups)
    assert all(model["features.1.num_batches_tracked"].item() == 0 for model in models.values())


# ---- the groups


def test_users_of_one_kind_of_data_are_grouped_in_a_wide_band_of_thresholds() -> None:
    """Table 2 in small: ten users in five groups, two classes each; all thresholds from one pre-training."""
    spec = spec_of(
        {"pretrain_rounds": 3, "threshold": "auto"},
        data="digits",
        partition={"name": "by_group", "n_groups": 5, "gamma": 0.8},
        num_edges=10,
        num_devices=10,
        num_rounds=3,
        test_fraction=0.3,
        local_epochs=4,
    )
    done = tried(**spec)
    pairs = [[n, n + 1] for n in range(0, 10, 2)]
    assert groups_of(done) == pairs
    ctx = done.experiment.ctx(phase="pretrain", round_no=3, n_clients=10)
    figures = done.experiment.algorithm.cloud.figures(ctx, done.state)
    band = [th for th in np.geomspace(1e-3, 1, 61) if _cut(figures, th) == pairs]
    assert band[-1] / band[0] > 3
    assert len(_cut(figures, 1e-4)) == 10
    assert len(_cut(figures, 1.5)) == 1
    assert band[0] < figures["threshold"] < band[-1]
    assert figures["gap"][1] >= 2 * figures["gap"][0]
    assert sum(figures["gap"]) / 2 == pytest.approx(figures["threshold"])
    assert figures["users"] == [f"edge-{n}" for n in range(10)]
    vectors = np.stack([done.state.last[user].double().numpy() for user in figures["users"]])
    for threshold in (0.5 * band[0], band[0], band[-1], 2 * band[-1]):
        labels = fcluster(linkage(pdist(vectors, "cosine"), "average"), threshold, "distance")
        assert _cut(figures, threshold) == sorted([int(i) for i in np.flatnonzero(labels == n)] for n in set(labels))


def _cut(figures: dict[str, Any], threshold: float) -> list[list[int]]:
    """Returns the groups that the reference's merging makes of the distances in the record."""
    n = len(figures["users"])
    square = np.zeros((n, n))
    square[np.triu_indices(n, 1)] = figures["distances"]
    return plain_dtpfl.agglomerate(square + square.T, threshold)


# ---- what is sent and recorded


async def test_personal_layers_are_sent_once_and_then_averaged_by_group() -> None:
    done = await ran(spec_of({"pretrain_rounds": 2, "threshold": 0.02}), **FOUR)
    assert [row.phase for row in done.rounds] == ["pretrain", "pretrain", "group", "group"]
    for detail in done.rounds:
        personal = 0 if detail.round_no == 1 else HEAD_BYTES
        assert all(BASE_BYTES + personal < row.up_bytes < BASE_BYTES + personal + AROUND for row in detail.edges)
    assert [bool(cloud_figures(done, n)) for n in (1, 2, 3, 4)] == [False, True, False, False]
    assert [done.rounds[n].figures["0"] for n in (0, 1)] == [{"group": None, "pretrained": n} for n in (1, 2)]
    assert done.rounds[2].figures["0"]["group"] == done.state.groups["edge-0"]
    assert AROUND < HEAD_BYTES


@pytest.mark.whole
async def test_layout_of_agents_does_not_change_the_result() -> None:
    spec = spec_of({"pretrain_rounds": 1, "threshold": 0.005}, num_rounds=3)
    done = await ran(spec, n_edges=4, agent_devices=(1,) * 8, order=tuple(reversed(range(8))))
    alone = tried(**spec)
    assert leaves(done.state) == leaves(alone.state)
    assert largest_difference(done, own_models(alone)) == 0


# ---- users that leave and join


async def replace_edge(fed: Federation, number: int) -> None:
    registry = fed.apps["cloud"].state.cloud.registry
    await fed.start_edge(number)
    await fed.until(lambda: registry.edge_is_live(f"edge-{number + 1}") and fed.n_agents() == len(fed.agent_devices))


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize("rounds", [1, 2], ids=["while it pre-trains", "once it has a group"])
async def test_personal_layers_and_group_survive_a_restart_of_the_edge(rounds: int, tmp_path: Path) -> None:
    """A user's model can be downloaded after the user has a group."""
    spec = spec_of({"pretrain_rounds": 2, "threshold": 0.02})
    whole = await ran(spec, **FOUR)
    async with federation(tmp_path, **FOUR) as fed:
        run_id = await fed.start_and_pause(spec, rounds)
        early = await fed.client.get(f"/runs/{run_id}/models/edge-3")
        await fed.stop("edge-1")
        await fed.start_edge(1)
        await fed.until(lambda: fed.n_agents() == 2)
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
        fetched = await fed.client.get(f"/runs/{run_id}/models/edge-3")
    assert early.status_code == (404 if rounds == 1 else 200)
    assert set(done.info.models) == {"global", *(f"edge-{n}" for n in range(4))}
    assert flat.same_bits(load_model(fetched.content), own_models(done)[3])
    assert done.info.model_sha256 == whole.info.model_sha256
    assert done.state.groups == whole.state.groups
    assert largest_difference(done, own_models(whole)) == 0
    assert not any(row.fresh_state for detail in done.rounds for row in detail.edges)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.02, 0.0005], ids=["into the nearest group", "alone"])
async def test_user_that_was_absent_pretrains_alone_and_then_joins_a_group(threshold: float, tmp_path: Path) -> None:
    """User 3 trains in round 1 and is offline in round 2, when the others are clustered; it needs one round more."""
    spec = spec_of({"pretrain_rounds": 2, "threshold": threshold}, num_rounds=5)
    async with federation(tmp_path, **FOUR) as fed:
        run_id = await fed.start_and_pause(spec, 1)
        await fed.lose("edge-3")
        await fed.resume_and_pause(run_id, 1)
        without = await results_so_far(fed, run_id)
        await replace_edge(fed, 3)
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    assert set(without.state.groups) == {"edge-0", "edge-1", "edge-2"}
    assert [row.figures.get("3", {}).get("pretrained") for row in done.rounds] == [1, None, 2, 2, 2]
    assert groups_of(without) == ([[0, 1], [2]] if threshold == 0.02 else [[0], [1], [2]])
    check_placed(done, placed_in=3, threshold=threshold)


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.02, 0.0005], ids=["into the nearest group", "alone"])
async def test_user_that_joins_late_pretrains_alone_and_then_joins_a_group(threshold: float, tmp_path: Path) -> None:
    """User 3 never trained; a new edge takes its place after the others were clustered, and needs two rounds."""
    params = {"pretrain_rounds": 2, "threshold": threshold}
    spec = spec_of(params, num_rounds=6, timeouts={"reseat_after_s": 0})
    async with federation(tmp_path, **FOUR) as fed:
        gate = Gate(fed, 1, "/rounds", EDGE_PORT)
        run_id = await fed.submit(spec)
        await gate.reached.wait()
        await fed.lose("edge-3")
        await fed.pause_at(gate, run_id)
        await fed.resume_and_pause(run_id, 2)
        await replace_edge(fed, 4)
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    of_user = [row.figures.get("3", {}) for row in done.rounds]
    assert [each.get("pretrained") for each in of_user] == [None, None, None, 1, 2, 2]
    assert cloud_figures(done, 2)["users"] == ["edge-0", "edge-1", "edge-2"]
    check_placed(done, placed_in=5, threshold=threshold)


def check_placed(done: Ended, *, placed_in: int, threshold: float) -> None:
    """User 3 joined user 2, the nearest, unless even that is beyond TH; the record agrees."""
    figures, mine = cloud_figures(done, placed_in), done.state.groups["edge-3"]
    assert all(row.figures.get("3", {}).get("group") is None for row in done.rounds[:placed_in])
    assert done.rounds[placed_in].figures["3"]["group"] == mine
    others = {user for user, name in done.state.groups.items() if name == mine} - {"edge-3"}
    assert others == ({"edge-2"} if threshold == 0.02 else set())
    assert _distance(done, "edge-2", "edge-3") == min(_distance(done, f"edge-{n}", "edge-3") for n in range(3))
    assert sorted([*others, "edge-3"]) in figures["groups"]
    assert own_models(done).keys() == {0, 1, 2, 3}


def _distance(done: Ended, a: str, b: str) -> float:
    vectors = [done.state.last[user].double().numpy() for user in (a, b)]
    found: float = plain_dtpfl.distances(vectors)[0, 1]
    return found


@pytest.mark.whole
async def test_lost_user_costs_its_contribution_and_keeps_its_group(tmp_path: Path) -> None:
    spec = spec_of({"pretrain_rounds": 1, "threshold": 0.005}, num_rounds=3)
    async with federation(tmp_path, **FOUR) as fed:
        run_id = await fed.start_and_pause(spec, 2)
        before = await results_so_far(fed, run_id)
        await fed.lose("edge-3")
        await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    assert done.state.groups == before.state.groups
    assert [row.outcome for row in done.rounds[2].edges] == ["used"] * 3 + ["failed"]
    assert 3 in own_models(done)
