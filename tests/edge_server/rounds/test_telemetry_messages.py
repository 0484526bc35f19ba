"""Telemetry in messages through the three tiers: shares follow what twins know, and tasks take what devices have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_server.rounds.simulated_clock import EdgeClock
from edge_server.rounds.twins import Twins
from shared.federation.population import run_seeds
from shared.simulation import REFERENCE_FLOPS, free_share, telemetry
from shared.simulation.digital_twin import Twin
from tests.edge_server.rounds.test_shared_workload import NEAR, planned, rows_of, twins_of
from tests.shared.algorithms.layouts import Ended, begun, ended, federation, ran, resolved

LOAD = {"name": "steps", "every_s": 0.5, "low": 0.2}
PROFILE = {**NEAR, "compute_sps": 0.2, "load": LOAD, "j_per_flop": 1e-9, "j_per_byte_up": 1e-3}
"""About 250 samples of this small model a second."""
TELEMETRY = {"period_s": 0.3, "delay_s": 0.05, "loss": 0.2, "noise": 0.1, "estimator": "kalman", "message_bytes": 100}
ALIKE = {"worker_sps": 0.2}


def spec_of(twins: Any, *, profile: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    devices = {"profile": {**PROFILE, **(profile or {})}, "edge_latency_s": 0}
    common = {"edge_link": ALIKE, "num_devices": 4, "num_rounds": 4, "name": "telemetry"}
    return planned(**{**common, "devices": devices, "twins": twins, **more})


async def with_twins(
    folder: Path, spec: dict[str, Any], *, restarted: bool = False, **layout: Any
) -> tuple[Ended, dict[int, Twin]]:
    async with federation(folder, n_edges=1, **(layout or {"agent_devices": (4,)})) as fed:
        return await ended(fed, await begun(fed, spec, restarted=restarted)), await twins_of(fed)


async def test_shares_follow_estimates_and_tasks_take_what_devices_have(tmp_path: Path) -> None:
    load = {**LOAD, "low": 0.7}  # so that no task counts as slow
    spec = spec_of({"period_s": 2.0}, profile={"load": load}, edge_worker=False, num_rounds=5)
    done, twins = await with_twins(tmp_path, spec)
    last, seeds = done.rounds[-1], {seat: run_seeds(done.experiment.spec, f"seat {seat}") for seat in twins}
    known = {seat: twin.telemetry for seat, twin in twins.items()}
    total, wrong = sum(each.free_sps for each in known.values()), 0
    for seat, row in rows_of(last).items():
        own, seen = done.experiment.seat(seat).profile.load, twins[seat].history[-1]
        free, old = (free_share(own, at_s, seeds[seat]) for at_s in (seen.at_s, known[seat].at_s))
        assert seen.telemetry_age_s == pytest.approx(seen.at_s - known[seat].at_s)
        assert 0 < (seen.telemetry_age_s or 0) <= 2
        assert seen.estimated_sps == known[seat].free_sps == pytest.approx(0.2 * old)
        assert row.n_samples == pytest.approx(300 * known[seat].free_sps / total, abs=1)
        assert row.compute_s == pytest.approx(row.n_samples * done.experiment.flops / (0.2 * free * REFERENCE_FLOPS))
        assert seen.actual_sps == pytest.approx(0.2 * free)
        assert seen.error_s == pytest.approx(row.simulated_s - (row.predicted_s or 0))
        wrong += old != free
    assert wrong >= 2


async def test_messages_count_in_bytes_and_energy_and_drain_the_battery(tmp_path: Path) -> None:
    spec = spec_of(TELEMETRY, profile={"battery_j": 1000.0})
    done, twins = await with_twins(tmp_path, spec)
    ends_s, spent, n_lost = sum(detail.simulated_s for detail in done.rounds[:4]), 0.0, 0
    for seat, twin in twins.items():
        if twin.heard is None:
            assert seat == 4  # the edge's own machine
            continue
        assert twin.heard.n_sent == pytest.approx((ends_s - 0.05) / 0.3, abs=1)
        n_lost += twin.heard.n_lost
        tasks_j = sum(seen.energy_j or 0 for seen in twin.history)
        assert twin.spent_j == pytest.approx(tasks_j + 0.1 * twin.heard.n_sent)
        assert 0 < (twin.telemetry.charge or 0) < 1
        spent += 0.1 * twin.heard.n_sent
    assert 0 < n_lost < spent / 0.1 / 2
    assert sum(detail.telemetry_bytes for detail in done.rounds) == pytest.approx(spent * 1000)
    assert sum(detail.telemetry_j for detail in done.rounds) == pytest.approx(spent)
    assert [row.telemetry_bytes for row in done.rounds[0].edges] == [done.rounds[0].telemetry_bytes]
    quiet, _ = await with_twins(tmp_path / "quiet", spec_of(True, profile={"battery_j": 1000.0}))
    assert "telemetry" not in "".join(detail.model_dump_json(exclude={"run"}) for detail in quiet.rounds)


@pytest.mark.whole
async def test_neither_hosts_nor_a_restart_of_all_tiers_changes_what_twins_know(tmp_path: Path) -> None:
    devices = {"availability": {"name": "on_off", "mean_on_s": 2, "mean_off_s": 1}}
    spec = spec_of({**TELEMETRY, "offline_after": 2}, profile={**devices, "drop_rate": 0.1}, num_rounds=5)
    done, twins = await with_twins(tmp_path / "one", spec)
    layouts: list[dict[str, Any]] = [{"agent_devices": (1,) * 4, "order": (3, 1, 0, 2)}, {"restarted": True}]
    for number, more in enumerate(layouts):
        other, others = await with_twins(tmp_path / str(number), spec, **more)
        assert others == twins
        assert other.info.model_sha256 == done.info.model_sha256
        assert other.links() == done.links()
        assert [d.telemetry_bytes for d in other.rounds] == [d.telemetry_bytes for d in done.rounds]


@pytest.mark.whole
async def test_exact_messages_about_devices_that_never_change_plan_what_twins_without_messages_do(
    tmp_path: Path,
) -> None:
    steady = {"load": "none"}
    exact, _ = await with_twins(tmp_path / "exact", spec_of(True, profile=steady, num_rounds=3))
    for estimator in ("last", "ewma", "kalman"):
        spec = spec_of({"period_s": 0.4, "estimator": estimator}, profile=steady, num_rounds=3)
        done, _ = await with_twins(tmp_path / estimator, spec)
        assert [rows_of(detail).keys() for detail in done.rounds] == [rows_of(detail).keys() for detail in exact.rounds]
        assert done.info.model_sha256 == exact.info.model_sha256


@pytest.mark.whole
async def test_a_device_found_off_is_left_out_until_it_is_heard_again(tmp_path: Path) -> None:
    """Seat 0 goes off at second 1; the edge, which takes it to be on for long, finds out once."""
    traces = {"name": "trace", "traces": [[[0, 1.0], [50, 1e9]], [[0, 1e9]], [[0, 1e9]], [[0, 1e9]]]}
    spec = spec_of({"period_s": 0.5, "offline_after": 1000}, profile={"availability": traces}, num_rounds=8)
    done, twins = await with_twins(tmp_path, spec)
    reasons = [
        row.reason for detail in done.rounds for row in detail.seats if row.seat == 0 and row.outcome == "failed"
    ]
    assert reasons == ["unavailable"]
    assert (twins[0].health, twins[0].telemetry.on) == ("offline", False)
    assert [sum(row.n_samples for row in detail.seats) for detail in done.rounds[:8]] == [300] * 8


async def test_selection_of_the_fastest_relies_on_estimates() -> None:
    """Before their first message all devices count as free, and the lower numbers come first."""
    common: dict[str, Any] = {
        "client": "device",
        "schedule": "own_data",
        "select": "fastest",
        "fraction_train": 0.5,
        "num_rounds": 1,
    }
    chosen = []
    for twins in (True, {"period_s": 1e6}):
        done = await ran(spec_of(twins, **common, seed=3), n_edges=1, agent_devices=(4,))
        chosen.append([row.seat for row in done.rounds[0].seats])
    seeds = [run_seeds(done.experiment.spec, f"seat {seat}") for seat in range(4)]
    free = [free_share(done.experiment.seat(0).profile.load, done.rounds[0].edges[0].down_s, each) for each in seeds]
    assert chosen == [sorted(np.argsort(free)[2:].tolist()), [0, 1]]
    assert chosen[0] != chosen[1]


def test_an_edge_listens_to_a_device_from_the_round_on_in_which_it_serves_it_and_forgets_one_that_leaves() -> None:
    experiment = resolved(**spec_of({"period_s": 0.5, "message_bytes": 10}))
    assert experiment.spec.telemetry is not None

    def round_of(known: dict[int, Twin], began_s: float, ends_s: float, seats: list[int]) -> tuple[Twins, int, float]:
        twins = Twins(known, experiment.spec.telemetry, began_s)
        clock = twins.listen(EdgeClock(experiment, 0, round_no=1, at_s=began_s), seats)
        return twins, *twins.end_round(clock.at(ends_s), seats)

    first, n_bytes, energy_j = round_of({}, 0.0, 5.0, [0, 1])
    assert n_bytes == 200
    assert energy_j == pytest.approx(0.2)
    assert {seat: twin.heard and twin.heard.n_sent for seat, twin in first.known.items()} == {0: 10, 1: 10}
    second, n_bytes, _ = round_of(first.known, 5.0, 8.0, [1])
    assert (n_bytes, second.known[0].heard) == (60, None)
    third, n_bytes, _ = round_of(second.known, 8.0, 10.0, [0, 1])
    assert n_bytes == 80
    heard = third.known[0].heard
    assert heard is not None
    assert (heard.since_s, heard.n_sent) == (8.0, 4)


async def test_too_many_messages_fail_the_run_and_name_the_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MOST_MESSAGES", 5)
    async with federation(tmp_path, n_edges=1, agent_devices=(4,)) as fed:
        info = await fed.run(spec_of({"period_s": 0.01}))
    assert info.status == "failed"
    assert "a longer period is needed" in (info.reason or "")
