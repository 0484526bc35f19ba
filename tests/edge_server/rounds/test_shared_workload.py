"""Planned shares and digital twins through the three tiers: each sample is trained on once, and twins learn from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from torch.nn import functional

from edge_server.rounds.round_log import RoundLog
from shared.federation import scheduling
from shared.run_records.rounds import RoundDetail
from shared.run_records.visits import VisitRow
from shared.simulation import REFERENCE_FLOPS
from shared.simulation.digital_twin import Twin, TwinList
from shared.training import models
from shared.training.data.dataset import as_batch
from tests.faults import at, broken
from tests.federation import AGENT_PORT, Federation, small_spec
from tests.shared.algorithms import flat
from tests.shared.algorithms.layouts import Ended, ended, federation, run

NEAR: dict[str, Any] = {"latency_s": 0, "up_bps": 1e15, "down_bps": 1e15}
THREE = [{"profile": {**NEAR, "compute_sps": sps}, "share": 1 / 3} for sps in (100, 200, 300)]


def planned(schedule: str = "free_compute", **changes: Any) -> dict[str, Any]:
    """Returns a spec of three devices with 100, 200 and 300 samples per second and an edge worker with 400."""
    devices = {"profiles": THREE, "edge_latency_s": 0}
    more = {"client": "edge", "schedule": schedule, "devices": devices, "edge_link": {"worker_sps": 400}}
    return small_spec(**{"num_devices": 3, "num_edges": 1, **more, **changes})


ONE_EDGE: dict[str, Any] = {"n_edges": 1, "agent_devices": (1, 1, 1)}


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Returns the samples trained on in each round of an edge, in the order of the visits."""
    found: list[list[int]] = []
    answer_fields = RoundLog.answer_fields

    def noted(log: RoundLog) -> dict[str, Any]:
        if log.shares:  # not in the evaluation after the last round
            found.append([int(sample) for samples in log.shares for sample in samples])
        return answer_fields(log)

    monkeypatch.setattr(RoundLog, "answer_fields", noted)
    return found


def rows_of(detail: RoundDetail) -> dict[int, VisitRow]:
    return {row.seat: row for row in detail.seats if row.outcome == "used"}


def all_results(done: Ended) -> list[int]:
    return sorted(int(sample) for home in done.experiment.population.edges for sample in home.train)


async def twins_of(fed: Federation, edge: str = "edge-1", run_id: str = "latest") -> dict[int, Twin]:
    answer = await fed.client.get(f"/edges/{edge}/twins", params={"run": run_id})
    assert answer.status_code == 200, answer.text
    return TwinList.model_validate(answer.json()).by_seat()


# ---- the size of shares


async def test_shares_follow_free_compute_and_samples_that_move_are_charged_and_counted_in_time(
    tmp_path: Path, trained_on: list[list[int]]
) -> None:
    slow = {"profile": {**NEAR, "compute_sps": 100, "down_bps": 1e6}, "edge_latency_s": 0}
    spec = planned(num_rounds=1, devices=slow, edge_link={"worker_sps": 200})
    done = await run(tmp_path, spec, **ONE_EDGE)
    rows = rows_of(done.rounds[0])
    assert {seat: row.n_samples for seat, row in rows.items()} == {0: 60, 1: 60, 2: 60, 3: 120}  # eq. 2 of 300
    assert sorted(trained_on[0]) == all_results(done)
    assert done.experiment.sample_bytes == 64 + 8
    for seat in range(3):
        row = rows[seat]
        assert 0 < row.moved_bytes < 60 * 72
        assert row.moved_bytes % 72 == 0
        assert row.down_s == pytest.approx(8 * row.down_bytes / 1e6)
        assert row.down_bytes > row.moved_bytes + done.experiment.ctx(phase="", round_no=1, n_clients=1).model.n_bytes
    assert (rows[3].moved_bytes, rows[3].down_bytes) == (0, 0)  # the edge's own machine has all samples
    assert {
        row.moved_bytes for row in (await run(tmp_path, spec | {"schedule": "own_data"}, **ONE_EDGE)).rounds[0].seats
    } == {0}


async def test_with_finish_time_all_devices_finish_together_and_sooner_than_with_free_compute(tmp_path: Path) -> None:
    """Devices that compute slowly have slow links too, which the paper's rule ignores."""
    kinds = [{**NEAR, "compute_sps": 500, "down_bps": 2e5}, {**NEAR, "compute_sps": 100}]
    devices = {"profiles": [{"profile": kind, "share": 0.5} for kind in kinds], "edge_latency_s": 0}
    found = {}
    for schedule in ("free_compute", "finish_time", "own_data"):
        spec = planned(schedule, num_rounds=1, num_devices=4, devices=devices, edge_link={"worker_sps": 50})
        found[schedule] = rows_of((await run(tmp_path, spec, n_edges=1, agent_devices=(2, 2))).rounds[0])
    lasted = {schedule: max(row.simulated_s for row in rows.values()) for schedule, rows in found.items()}
    assert lasted["finish_time"] < 0.9 * min(lasted["free_compute"], lasted["own_data"])
    used = [row.simulated_s for row in found["finish_time"].values()]
    a_sample = max(row.compute_s / row.n_samples for row in found["finish_time"].values())
    assert max(used) - min(used) < 3 * a_sample


# ---- twins


@pytest.mark.whole
async def test_twins_are_read_at_both_tiers_and_errors_are_named(tmp_path: Path) -> None:
    noisy = {"profile": {**NEAR, "delay_s": {"name": "uniform", "low": 0, "high": 4}}, "edge_latency_s": 0}
    async with federation(tmp_path, **ONE_EDGE) as fed:
        done = await ended(fed, await fed.submit(planned(num_rounds=3, devices=noisy)))
        twins = await twins_of(fed)
        assert sorted(twins) == [0, 1, 2, 3]
        assert await twins_of(fed, run_id=done.info.run) == twins
        for seat, twin in twins.items():
            rows = [rows_of(detail)[seat] for detail in done.rounds]
            assert [visit.predicted_s for visit in twin.history] == [row.predicted_s for row in rows]
            assert [visit.took_s for visit in twin.history] == [row.simulated_s for row in rows]
            assert [visit.error_s for visit in twin.history] == [
                row.simulated_s - (row.predicted_s or 0) for row in rows
            ]
            assert twin.telemetry.free_sps == (400 if seat == 3 else 500)
            assert twin.n_learned == 3
        assert any(visit.error_s for visit in twins[0].history)
        assert [visit.error_s for visit in twins[3].history] == [pytest.approx(0.0)] * 3
        assert twins[3].ratio == pytest.approx(1.0)
        assert twins[0].ratio != pytest.approx(1.0)

        agent = fed.agent_id(0)
        answer = await fed.client.get(f"/agents/{agent}/twin")
        (mine,) = TwinList.model_validate(answer.json()).twins
        seats = {seat.agent: seat.seat for seat in (await fed.seats(done.info.run)).seats}
        assert mine == twins[seats[agent]]
        for path in ("/edges/edge-9/twins", "/agents/nobody/twin", "/edges/edge-1/twins?run=none"):
            answer = await fed.client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
        plain = await fed.run(small_spec(num_rounds=1, num_devices=3, num_edges=1))
        answer = await fed.client.get("/edges/edge-1/twins", params={"run": plain.run})
        assert answer.status_code == 404
        assert "no twins of run" in answer.json()["detail"]


MIXED = {
    "profile": {
        **NEAR,
        "compute_sps": {
            "name": "uniform",
            "low": 0.05,
            "high": 0.5,
        },  # 61 to 610 samples of this small model per second
        "delay_s": {"name": "uniform", "low": 0, "high": 0.1},
        "load": {"name": "steps", "every_s": 0.2, "low": 0.2},
        "drop_rate": 0.2,
    },
    "edge_latency_s": 0,
}
ALIKE = {"worker_sps": 0.4}
"""An edge's own machine that is no faster than these devices, so that every schedule needs them."""


@pytest.mark.whole
@pytest.mark.parametrize("schedule", ["free_compute", "finish_time"])
async def test_shares_and_twins_depend_neither_on_hosts_nor_on_the_start_order_of_agents(
    tmp_path: Path, schedule: str, trained_on: list[list[int]]
) -> None:
    spec = planned(
        schedule, num_devices=4, num_rounds=3, average_every="epoch", local_epochs=2, devices=MIXED, edge_link=ALIKE
    )
    layouts: list[dict[str, Any]] = [{"agent_devices": (4,)}, {"agent_devices": (1,) * 4, "order": (3, 1, 0, 2)}]
    found = []
    for layout in layouts:
        async with federation(tmp_path, n_edges=1, **layout) as fed:
            done = await ended(fed, await fed.submit(spec))
            found.append((done, await twins_of(fed)))
    (one, its), (other, theirs) = found
    assert one.info.model_sha256 == other.info.model_sha256
    assert one.links() == other.links()
    assert its == theirs
    reasons = {row.reason for detail in one.rounds for row in detail.seats}
    assert reasons == {None, "dropped"}
    twice = sorted(all_results(one) * 2)  # in each of two epochs
    assert [sorted(samples) for samples in trained_on] == [twice] * 6
    server = {row.n_samples for detail in one.rounds for row in detail.seats if row.seat == 4 and row.wave == 0}
    assert len(server) > 1  # the load of the others goes up and down


# ---- lost shares go to other devices


async def test_share_of_a_worker_that_fails_is_trained_by_the_others_once_and_its_twin_shows_it(
    tmp_path: Path, trained_on: list[list[int]]
) -> None:
    async with federation(tmp_path, **ONE_EDGE) as fed:
        fed.router.tamper = at(AGENT_PORT, "/visits", broken, times=1)
        done = await ended(fed, await fed.submit(planned(num_rounds=3)))
        twins = await twins_of(fed)
    first, second, third = done.rounds
    (failed,) = [row for row in first.seats if row.outcome == "failed"]
    heirs = [row for row in first.seats if row.wave == 1]
    assert sum(row.n_samples for row in heirs) == 300 - sum(row.n_samples for row in first.seats if row.wave == 0)
    assert failed.seat not in {row.seat for row in heirs}
    assert [sorted(samples) for samples in trained_on] == [all_results(done)] * 3
    twin = twins[failed.seat]
    assert [visit.outcome for visit in twin.history] == ["failed", "used"]
    assert (twin.health, twin.strikes) == ("recovering", 1)
    assert failed.seat not in rows_of(second)  # offline for an edge round
    sps = {seat: twin.telemetry.free_sps for seat, twin in twins.items()}
    with_care = 300 * sps[failed.seat] / 2 / (1000 - sps[failed.seat] / 2)
    assert rows_of(third)[failed.seat].n_samples == pytest.approx(with_care, abs=1)  # then it gets half of its share


async def test_dropped_shares_go_to_the_remaining_devices(tmp_path: Path, trained_on: list[list[int]]) -> None:
    spec = planned(num_rounds=1, edge_worker=False, devices={"profile": {"drop_rate": 0.5}}, num_devices=6)
    done = await run(tmp_path, spec, n_edges=1, agent_devices=(3, 3))
    (first,) = done.rounds
    assert sorted(trained_on[0]) == all_results(done)
    waves = {row.wave for row in first.seats}
    assert len(waves) > 1
    assert {row.reason for row in first.seats} == {None, "dropped"}
    lasted = [max(row.simulated_s for row in first.seats if row.wave == wave) for wave in sorted(waves)]
    assert first.simulated_s > sum(lasted)  # the waves in sequence, and the link to the cloud


async def test_a_round_without_remaining_devices_fails_and_lists_those_lost(tmp_path: Path) -> None:
    spec = planned(num_rounds=1, edge_worker=False)
    async with federation(tmp_path, **ONE_EDGE) as fed:

        async def all_broken(request: httpx2.Request, pass_on: Any) -> httpx2.Response:
            return await (broken(request, pass_on) if request.url.path == "/visits" else pass_on())

        fed.router.tamper = all_broken
        info = await fed.run(spec)
    assert info.status == "failed"
    assert "300 of 300 samples were not trained on" in (info.reason or "")


@pytest.mark.whole
async def test_worker_that_overruns_is_cancelled_and_the_others_train_its_share(
    tmp_path: Path, trained_on: list[list[int]]
) -> None:
    tail = {"name": "pareto", "shape": 0.7, "scale": 1}
    spec = planned(num_rounds=2, overrun=2.0, devices={"profile": {**NEAR, "delay_s": tail}, "edge_latency_s": 0})
    done = await run(tmp_path, spec, **ONE_EDGE)
    rows = [row for detail in done.rounds for row in detail.seats]
    late = [row for row in rows if row.outcome == "refused"]
    assert {row.reason for row in late} == {"late"}
    assert {row.wave for row in late} == {0}
    assert [sorted(samples) for samples in trained_on] == [all_results(done)] * 2
    for detail in done.rounds:
        planned_s = max(row.predicted_s or 0.0 for row in detail.seats if row.wave == 0)
        broken_off = [row for row in detail.seats if row.outcome == "refused"]
        assert [row.simulated_s for row in broken_off] == [pytest.approx(2 * planned_s)] * len(broken_off)


# ---- restarts


@pytest.mark.whole
async def test_an_edge_killed_between_and_within_rounds_has_the_same_twins_and_bits(tmp_path: Path) -> None:
    spec = planned("finish_time", num_rounds=3, devices=MIXED, edge_link=ALIKE, edge_rounds=2)
    async with federation(tmp_path, **ONE_EDGE) as fed:
        plain = await fed.run(spec)
        expected = await twins_of(fed)

        info = await fed.run(spec | {"num_rounds": 1})
        before = await twins_of(fed)
        await fed.restart_node("edge-0")
        await fed.until(lambda: fed.n_agents() == 3)
        assert await twins_of(fed) == before
        assert (await fed.add_rounds(info.run, 2)).model_sha256 == plain.model_sha256
        assert await twins_of(fed) == expected

        gate, run_id = await fed.submit_and_hold(spec, closed_at=3)
        await fed.stop("edge-0")
        gate.open.set()
        await fed.start_edge(0)
        again = await fed.finish(run_id)
        assert again.model_sha256 == plain.model_sha256
        assert await twins_of(fed) == expected


# ---- frequency of averaging, arriving data and load


async def test_averaging_after_each_step_equals_one_machine_with_all_data(tmp_path: Path) -> None:
    spec = planned(num_rounds=1, average_every="step", local_epochs=2, batch_size=64)
    done = await run(tmp_path, spec, **ONE_EDGE)
    assert {row.edge_round for row in done.rounds[0].seats} == set(range(2 * 5))
    experiment = done.experiment
    ctx = experiment.ctx(phase="train", round_no=1, n_clients=1, edge=0)
    seats = [seat for seat in experiment.population.seats if seat.role == "train"]
    batches = [scheduling.task_of(ctx.at(edge_round=n), seats) for n in range(10)]
    for epoch in (batches[:5], batches[5:]):
        assert sorted(np.concatenate(epoch).tolist()) == all_results(done)
    model = experiment.model
    models.write_state(model, experiment.initial)
    for batch in batches:
        x, y = (
            as_batch(experiment.data.train_x[batch]),
            torch.from_numpy(experiment.data.train_y[batch].astype(np.int64)),
        )
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.05)
    alone, together = models.read_state(model), done.model
    assert max(float((alone[name] - together[name]).abs().max()) for name in alone) < 1e-5
    assert max(float((alone[name] - tensor).abs().max()) for name, tensor in experiment.initial.items()) > 1e-3


@pytest.mark.whole
async def test_divided_batches_take_the_steps_of_one_machine(tmp_path: Path) -> None:
    """Without them each worker takes the fewer steps the smaller its share is, and the mean moves less."""
    common: dict[str, Any] = {"num_rounds": 2, "local_epochs": 2, "batch_size": 20}
    alone = await run(tmp_path, planned(**common, edge_link={"worker_sps": 1e12}), **ONE_EDGE)
    same = await run(tmp_path, planned(**common, edge_link={"worker_sps": 1e12}, divide_batch=True), **ONE_EDGE)
    assert same.info.model_sha256 == alone.info.model_sha256  # a share of all samples has the whole batch
    whole = await run(tmp_path, planned(**common), **ONE_EDGE)
    divided = await run(tmp_path, planned(**common, divide_batch=True), **ONE_EDGE)
    assert flat.distance(divided.model, alone.model) < flat.distance(whole.model, alone.model) / 2
    seconds = [row.simulated_s for row in whole.rounds]  # orders differ in a few bytes
    assert [row.simulated_s for row in divided.rounds] == pytest.approx(seconds, rel=1e-3)
    losses = [{"round_no": 1, "seats": [1], "edge_round": 0, "wave": 0}]
    lost = (await run(tmp_path, planned(**common, divide_batch=True, losses=losses), **ONE_EDGE)).rounds[0].seats
    assert sum(row.n_samples for row in lost if row.outcome == "used") == 300


@pytest.mark.whole
async def test_devices_collect_data_during_the_run(tmp_path: Path, trained_on: list[list[int]]) -> None:
    done = await run(tmp_path, planned(num_rounds=3, arrival_rate=0.4, twins=True), **ONE_EDGE)
    assert [len(set(samples)) for samples in trained_on] == [120, 240, 300]
    assert set(trained_on[0]) < set(trained_on[1]) < set(trained_on[2])
    plain = await run(tmp_path, planned("own_data", num_rounds=2, arrival_rate=30, edge_worker=False), **ONE_EDGE)
    assert [[row.n_samples for row in detail.seats] for detail in plain.rounds] == [[30] * 3, [60] * 3]
    assert done.rounds[0].seats[0].compute_s > 0


async def test_load_slows_a_visit_down_and_shares_follow_it(tmp_path: Path) -> None:
    load = {"name": "steps", "every_s": 1e9, "low": 0.1, "high": 0.9}
    devices = {"profile": {**NEAR, "compute_sps": 1000, "load": load}, "edge_latency_s": 0}
    async with federation(tmp_path, **ONE_EDGE) as fed:
        spec = planned(num_rounds=1, devices=devices, edge_worker=False)
        done = await ended(fed, await fed.submit(spec))
        twins = await twins_of(fed)
    free = {seat: twin.telemetry.free_sps for seat, twin in twins.items()}
    assert len(set(free.values())) == 3
    assert all(100 <= sps <= 900 for sps in free.values())
    for seat, row in rows_of(done.rounds[0]).items():
        assert row.n_samples == pytest.approx(300 * free[seat] / sum(free.values()), abs=1)
        assert row.compute_s == pytest.approx(row.n_samples * done.experiment.flops / (free[seat] * REFERENCE_FLOPS))


@pytest.mark.whole
async def test_a_run_that_declares_the_losses_of_a_fault_plans_the_same_shares_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    disturbed = await run(
        tmp_path, planned(num_rounds=3), tamper=at(AGENT_PORT, "/visits", broken, times=1), **ONE_EDGE
    )
    (failure,) = [row for detail in disturbed.rounds for row in detail.seats if row.outcome == "failed"]
    losses = [{"round_no": 1, "seats": [failure.seat], "edge_round": 0, "wave": 0}]
    undisturbed = await run(tmp_path, planned(num_rounds=3, losses=losses), **ONE_EDGE)
    assert undisturbed.info.model_sha256 == disturbed.info.model_sha256
    for one, other in zip(disturbed.rounds, undisturbed.rounds, strict=True):
        assert {(s, row.n_samples) for s, row in rows_of(one).items()} == {
            (s, row.n_samples) for s, row in rows_of(other).items()
        }
