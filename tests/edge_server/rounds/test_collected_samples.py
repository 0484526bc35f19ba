"""Collected samples that travel to their edge: what a round divides, when it begins, and what waits behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_server.rounds.collected_samples import Upload
from edge_server.rounds.round_log import RoundLog
from shared.core.errors import BadInput
from shared.federation.data_arrival import first_samples, n_arrived
from shared.federation.spec_parser import parse_spec
from tests.edge_server.rounds.test_shared_workload import NEAR, planned, twins_of
from tests.federation import small_spec
from tests.shared.algorithms.layouts import Ended, begun, ended, federation

SLOW = {"compute_sps": 0.5, "latency_s": 0.1, "up_bps": 4e4, "down_bps": 1e15, "j_per_byte_up": 1e-3}
"""About 600 samples of this small model a second, and some 20 samples a second up."""


def spec_of(profile: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    devices = {"profile": {**SLOW, **(profile or {})}, "edge_latency_s": 0}
    common = {"num_devices": 3, "num_rounds": 4, "name": "travels", "collected": "travels", "arrival_rate": 0.3}
    return planned(**{**common, "edge_link": {"worker_sps": 0.5}, "devices": devices, **more})


async def run(folder: Path, spec: dict[str, Any], *, restarted: bool = False, **layout: Any) -> Ended:
    async with federation(folder, n_edges=1, **(layout or {"agent_devices": (3,)})) as fed:
        done = await ended(fed, await begun(fed, spec, restarted=restarted))
        assert await twins_of(fed)
        return done


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Returns the samples of each round."""
    found: list[set[int]] = []
    answer_fields = RoundLog.answer_fields

    def noted(log: RoundLog) -> dict[str, Any]:
        if log.shares:
            found.append({int(sample) for samples in log.shares for sample in samples})
        return answer_fields(log)

    monkeypatch.setattr(RoundLog, "answer_fields", noted)
    return found


async def test_a_round_divides_what_has_come_and_updates_wait_behind_what_is_under_way(
    tmp_path: Path, trained_on: list[set[int]]
) -> None:
    """An oracle of the uploads: a device sends what is new when a round begins and its link is free."""
    done = await run(tmp_path, spec_of())
    experiment = done.experiment
    seats, a_sample = [experiment.seat(number) for number in range(3)], experiment.sample_bytes
    began_s, uploads, waits = 0.0, {seat.number: (0, 0, 0.0) for seat in seats}, 0
    for detail, samples in zip(done.rounds[:4], trained_on, strict=True):
        at_s, n_bytes = began_s + detail.edges[0].down_s, 0
        for seat in seats:
            _, sent, ends_s = uploads[seat.number]
            n = n_arrived(experiment.spec, seat.n_train, detail.round_no)
            if ends_s <= at_s and n > sent:
                n_bytes += (n - sent) * a_sample
                uploads[seat.number] = (sent, n, at_s + 0.1 + 8 * (n - sent) * a_sample / 4e4)
        if detail.round_no == 1:
            at_s = max(ends_s for _, _, ends_s in uploads.values())
        here = {number: n if ends_s <= at_s else before for number, (before, n, ends_s) in uploads.items()}
        held = (first_samples(experiment.spec, seat, here[seat.number]).train.tolist() for seat in seats)
        assert samples == {sample for own in held for sample in own}
        assert detail.collected_bytes == n_bytes
        assert detail.collected_j == pytest.approx(1e-3 * n_bytes)
        assert detail.device_bytes_up == n_bytes + sum(row.up_bytes for row in detail.seats)
        assert detail.energy_j == pytest.approx(1e-3 * n_bytes + sum(row.energy_j for row in detail.seats))
        for row in detail.seats:
            assert began_s + row.begin_s == pytest.approx(at_s)
            ready_s = at_s + row.down_s + row.compute_s
            free_s = uploads[row.seat][2] if row.seat in uploads else 0.0  # the edge's own machine has no link
            assert row.wait_s == pytest.approx(max(free_s - ready_s, 0.0) if row.up_bytes else 0.0, abs=1e-9)
            assert row.simulated_s == pytest.approx(row.down_s + row.compute_s + row.wait_s + row.up_s)
            waits += row.wait_s > 0.1
        began_s += detail.simulated_s
    assert waits >= 3
    assert len(trained_on[0]) < len(trained_on[-1])


async def test_on_a_link_that_takes_no_time_samples_that_are_there_from_the_start_change_nothing(
    tmp_path: Path,
) -> None:
    common: dict[str, Any] = {"profile": {**NEAR, "up_bps": 1e15}, "arrival_rate": None, "num_rounds": 3}
    one = await run(tmp_path / "travels", spec_of(**common))
    other = await run(tmp_path / "at_edge", spec_of(**common, collected="at_edge"))
    shares = [[{row.seat: row.n_samples for row in detail.seats} for detail in done.rounds] for done in (one, other)]
    assert shares[0] == shares[1]
    assert one.info.model_sha256 == other.info.model_sha256
    assert [detail.collected_bytes for detail in one.rounds[1:3]] == [0] * 2
    assert "collected" not in "".join(detail.model_dump_json() for detail in other.rounds)


@pytest.mark.whole
async def test_neither_hosts_nor_a_restart_of_all_tiers_changes_what_has_come(tmp_path: Path) -> None:
    devices = {"availability": {"name": "on_off", "mean_on_s": 20, "mean_off_s": 5}, "jitter_s": 0.05}
    spec = spec_of(devices, num_rounds=4, twins={"period_s": 1.0})
    done = await run(tmp_path / "one", spec)
    layouts: list[dict[str, Any]] = [{"agent_devices": (1,) * 3, "order": (2, 0, 1)}, {"restarted": True}]
    for number, more in enumerate(layouts):
        other = await run(tmp_path / str(number), spec, **more)
        assert other.info.model_sha256 == done.info.model_sha256
        assert other.links() == done.links()
        assert [d.collected_bytes for d in other.rounds] == [d.collected_bytes for d in done.rounds]


async def test_an_edge_without_samples_waits_until_the_first_device_is_on_and_its_upload_has_come(
    tmp_path: Path,
) -> None:
    traces = {"name": "trace", "traces": [[[500, 1e9]], [[400, 1e9]], []]}
    done = await run(tmp_path, spec_of({"availability": traces}, num_rounds=1, schedule="equal", twins=True))
    experiment, (first, *_) = done.experiment, done.rounds
    n = n_arrived(experiment.spec, experiment.seat(1).n_train, 1)
    begin_s = 400 + 0.1 + 8 * n * experiment.sample_bytes / 4e4
    assert [row.begin_s for row in first.seats] == pytest.approx([begin_s] * len(first.seats))
    assert sum(row.n_samples for row in first.seats if row.outcome == "used") < n < len(experiment.seat(1).train)
    assert first.collected_bytes == n * experiment.sample_bytes


def test_samples_count_from_the_instant_at_which_their_upload_arrives() -> None:
    upload = Upload(n_before=3, n_sent=8, ends_s=2.5)
    assert [upload.at_edge(at_s) for at_s in (0.0, 2.4, 2.5, 9.0)] == [3, 3, 8, 8]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "own_data"}, "collected: travels needs a schedule that divides samples"),
        ({"schedule": "equal", "clock": "real"}, "collected: travels needs clock: simulated"),
        ({"schedule": "equal", "algorithm": "bofl"}, "collected: bofl decides by reports"),
        ({"collected": "travel"}, "collected: must be 'at_edge' or 'travels'"),
    ],
)
def test_samples_travel_only_where_they_leave_their_devices(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_spec(small_spec(**{"collected": "travels", **changes}))
