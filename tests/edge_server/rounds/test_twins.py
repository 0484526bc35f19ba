"""`clock: real` with planned shares: measured seconds replace those that profiles imply.

The tests fix the measured seconds, so that the resulting plans are known.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edge_server.rounds.wave import AgentReplies
from shared.run_records.rounds import RoundDetail
from shared.runtime.cpu_use import CpuUse
from shared.simulation import REFERENCE_FLOPS
from shared.simulation.digital_twin import TwinList
from tests.edge_server.rounds.test_real_clock import Slow, generous_s
from tests.federation import small_spec
from tests.shared.algorithms.layouts import Ended, ended, federation

QUICK = {"compute_sps": 1e6, "latency_s": 0, "up_bps": 1e15, "down_bps": 1e15}
SCALE = 0.5
WALL_S = {0: 0.6, 1: 0.3, 2: 0.3, 3: 0.1}
"""Wall seconds of each seat's visit in the first round; seat 3 is the edge's own machine."""
LATER_S = 0.25
"""Wall seconds of every visit in the second round."""


def measured_spec(schedule: str, **changes: Any) -> dict[str, Any]:
    """Returns a spec with the real clock, three devices and their edge with equal profiles."""
    devices = {"profile": QUICK, "edge_latency_s": 0}
    alike = {"client": "edge", "schedule": schedule, "devices": devices, "edge_link": {"worker_sps": 1e6}}
    layout = {"num_devices": 3, "num_edges": 1, "num_rounds": 2}
    return small_spec(**{**alike, **layout, "clock": "real", "time_scale": SCALE, **changes})


@pytest.fixture
def fixed_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the measured wall seconds by the constants above."""

    rounds: Counter[int] = Counter()

    def measure(replies: AgentReplies, seats: list[int], wall_s: float) -> None:
        rounds.update(seats)
        replies.measured |= {seat: WALL_S[seat] if rounds[seat] == 1 else LATER_S for seat in seats}

    monkeypatch.setattr(AgentReplies, "measure", measure)


async def planned(folder: Path, spec: dict[str, Any], tamper: Any = None) -> tuple[Ended, TwinList]:
    async with federation(folder, n_edges=1, agent_devices=(1, 1, 1)) as fed:
        fed.router.tamper = tamper
        done = await ended(fed, await fed.submit(spec))
        answer = await fed.client.get("/edges/edge-1/twins")
        return done, TwinList.model_validate(answer.json())


def shares(detail: RoundDetail) -> dict[int, int]:
    return {row.seat: row.n_samples for row in detail.seats if row.outcome == "used"}


@pytest.mark.parametrize("schedule", ["free_compute", "finish_time"])
@pytest.mark.usefixtures("fixed_seconds")
async def test_shares_follow_the_measured_compute_and_errors_compare_predicted_with_measured_seconds(
    tmp_path: Path, schedule: str
) -> None:
    done, twins = await planned(tmp_path, measured_spec(schedule))
    first, second = done.rounds
    assert shares(first) == {0: 75, 1: 75, 2: 75, 3: 75}  # planned from the profiles
    speed = {seat: 1 / wall_s for seat, wall_s in WALL_S.items()}
    due = {seat: 300 * sps / sum(speed.values()) for seat, sps in speed.items()}
    assert shares(second) == {seat: pytest.approx(n, abs=2) for seat, n in due.items()}  # planned from the measurements
    for twin in twins.twins:
        one, two = twin.history
        assert (one.took_s, two.took_s) == (WALL_S[twin.seat] / SCALE, LATER_S / SCALE)
        rate = 75 * done.experiment.flops / (WALL_S[twin.seat] / SCALE * REFERENCE_FLOPS)  # of the reference model
        assert twin.telemetry.free_sps == pytest.approx(rate, rel=1e-3)
        assert two.predicted_s == pytest.approx(WALL_S[twin.seat] / SCALE * shares(second)[twin.seat] / 75, rel=1e-3)
        assert two.error_s == pytest.approx(LATER_S / SCALE - two.predicted_s)
        assert twin.strikes == 0  # the first visit took far longer than the profile implies and is ignored


LIMITS = (0.4, 0.2, 0.1)


@pytest.mark.usefixtures("fixed_seconds")
@pytest.mark.parametrize("clock", ["real", "simulated"])
async def test_limits_of_containers_that_agents_report_are_planned_by_before_anything_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    left = iter(LIMITS)

    class Limited:
        """The meter of an agent in a container with the next of the limits, where others use a twentieth of a CPU."""

        def __init__(self) -> None:
            self.cpu = CpuUse(limit=next(left), used=0.08, own=0.03)

        def look(self) -> CpuUse:
            return self.cpu

    monkeypatch.setattr("device_agent.app.CpuMeter", Limited)
    scale = {} if clock == "real" else {"time_scale": 1.0}
    spec = measured_spec("free_compute", edge_worker=False, clock=clock, **scale)
    done, twins = await planned(tmp_path, spec)
    first, second = map(shares, done.rounds)
    if clock == "simulated":  # there the profile says how fast a device is, wherever its process runs
        assert {*first.values(), *second.values()} == {100}
        assert [twin.telemetry.cpu for twin in twins.twins] == [None] * 3
        return
    free = {twin.seat: twin.telemetry.cpu.limit - 0.05 for twin in twins.twins if twin.telemetry.cpu}
    assert sorted(free.values(), reverse=True) == [limit - 0.05 for limit in LIMITS]
    assert first == {seat: pytest.approx(300 * share / sum(free.values()), abs=1) for seat, share in free.items()}
    speed = {seat: n / WALL_S[seat] for seat, n in first.items()}  # what was measured in the first round
    assert second == {seat: pytest.approx(300 * s / sum(speed.values()), abs=2) for seat, s in speed.items()}
    for twin in twins.twins:
        took_s = WALL_S[twin.seat] / SCALE
        rate = first[twin.seat] * done.experiment.flops / (took_s * REFERENCE_FLOPS)
        assert twin.telemetry.free_sps == pytest.approx(rate, rel=1e-3)
        predicted_s = took_s * second[twin.seat] / first[twin.seat]
        assert twin.history[1].predicted_s == pytest.approx(predicted_s, rel=1e-3)


async def test_with_the_simulated_clock_shares_follow_the_profiles(tmp_path: Path) -> None:
    done, twins = await planned(tmp_path, measured_spec("free_compute", clock="simulated", time_scale=1.0))
    assert [shares(detail) for detail in done.rounds] == [{0: 75, 1: 75, 2: 75, 3: 75}] * 2
    assert {twin.telemetry.free_sps for twin in twins.twins} == {1e6}


@pytest.mark.whole
async def test_the_twin_of_a_late_device_learns_how_slow_it_is(tmp_path: Path) -> None:
    wall_s = await generous_s()
    spec = measured_spec("free_compute", num_rounds=1, round_deadline_s=wall_s / SCALE)
    done, twins = await planned(tmp_path, spec, Slow(1))
    (late,) = [row for row in done.rounds[0].seats if row.outcome == "failed"]
    assert (late.reason, late.measured_s is not None) == ("late", True)
    twin = twins.by_seat()[late.seat]
    assert (twin.health, twin.strikes, twin.n_learned) == ("recovering", 1, 1)
    assert twin.history[0].took_s is None
    a_share_s = twin.ratio * 75 * done.experiment.flops / (1e6 * REFERENCE_FLOPS)
    assert a_share_s == pytest.approx((late.measured_s or 0) / SCALE, rel=1e-3)
    assert a_share_s > 0.8 * wall_s / SCALE
