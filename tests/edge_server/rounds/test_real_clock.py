"""`clock: real`: devices wait for their simulated time, and the wall clock decides which are late.

Wall times are only compared with their guaranteed lower bound: no device answers sooner than simulated.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shared.core.errors import BadInput
from shared.federation.spec_parser import parse_spec
from shared.run_records.rounds import RoundDetail
from shared.run_records.visits import VisitRow
from shared.wire import codec
from tests.federation import AGENT_PORT, Federation, PassOn, small_spec
from tests.shared.algorithms.layouts import Ended, federation, ran, run


def spec_of(delay_s: Any, scale: float, **more: Any) -> dict[str, Any]:
    """Returns a spec of two rounds with the real clock in which a visit takes this many simulated seconds."""
    devices = {"profile": {"delay_s": delay_s, "latency_s": 0}, "edge_latency_s": 0}
    return small_spec(devices=devices, clock="real", time_scale=scale, **more)


def trained(done: Ended) -> list[VisitRow]:
    return [row for detail in done.rounds for row in detail.seats]


@pytest.mark.whole
async def test_a_visit_takes_at_least_its_simulated_time_and_seats_of_one_agent_wait_in_parallel(
    tmp_path: Path,
) -> None:
    done = await run(tmp_path, spec_of({"name": "uniform", "low": 50, "high": 100}, 0.02), agent_devices=(6,))
    rows = trained(done)
    assert [row.outcome for row in rows] == ["used"] * 12
    for row in rows:
        assert row.measured_s is not None
        assert row.measured_s >= row.simulated_s * 0.02 > 1
    for detail in done.rounds:
        assert detail.wall_s >= max(row.simulated_s for row in detail.seats) * 0.02
        # In sequence they would have taken at least the sum.
        assert max(row.measured_s or 0 for row in detail.seats) < sum(row.simulated_s * 0.02 for row in detail.seats)


@pytest.mark.whole
async def test_the_real_clock_changes_nothing_but_measured_seconds(tmp_path: Path) -> None:
    real = await run(tmp_path, spec_of(10, 0.01), agent_devices=(2, 2, 1, 1))
    plain = await run(tmp_path, small_spec(devices=spec_of(10, 0.01)["devices"]), agent_devices=(6,))
    assert real.info.model_sha256 == plain.info.model_sha256
    assert [row.compute_s for row in trained(real)] == [row.compute_s for row in trained(plain)]
    assert {row.measured_s for row in trained(plain)} == {None}
    manifest = (tmp_path / "federation-x").parent  # folders are numbered: any folder with a manifest of either clock
    manifests = sorted(path.read_text(encoding="utf-8") for path in manifest.rglob("manifest.json"))
    assert ['"clock": "real"' in text for text in manifests].count(True) == 1
    assert ['"clock": "simulated"' in text for text in manifests].count(True) == 1


@pytest.mark.whole
async def test_with_reports_both_exchanges_take_their_time(tmp_path: Path) -> None:
    slow = {"up_bps": 400_000, "down_bps": 10**9, "latency_s": 0}
    spec = small_spec(devices={"profile": slow, "edge_latency_s": 0}, clock="real")
    done = await run(tmp_path, {**spec, "algorithm": "probe_refuse"}, agent_devices=(3, 3))
    used = [row for row in trained(done) if row.outcome == "used"]
    assert used
    for row in used:
        assert row.measured_s is not None
        assert row.measured_s >= row.simulated_s * 0.999 > 0


async def test_an_agent_keeps_only_the_answers_of_the_current_wave(tmp_path: Path) -> None:
    """Each round visits different seats; the answers of seats of earlier rounds are dropped."""
    kept: list[tuple[str, int]] = []
    async with federation(tmp_path, n_edges=1, agent_devices=(6,)) as fed:

        async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
            answer = await pass_on()
            if request.url.path == "/visits" and request.url.port == AGENT_PORT:
                kind = codec.read_header(request.content).record["visits"][0]["task"]["kind"]
                kept.append((kind, len(fed.apps["agent-0"].state.agent.orders._work)))
            return answer

        fed.router.tamper = tamper
        info = await fed.run(spec_of(1, 0.01, num_edges=1, num_rounds=4, select="random", fraction_train=0.33))
        chosen = {row.seat for n in range(1, 5) for row in (await fed.round(info.run, n)).seats}
    assert len(chosen) > 2
    assert max(n for kind, n in kept if kind == "train") == 2


# ---- late by the wall clock


async def generous_s() -> float:
    """Returns many times the wall seconds that a device took on this machine, and seconds for a pause."""
    measured = await ran(spec_of(1, 0.01, num_rounds=1))
    return round(4 + 10 * max(row.measured_s or 0 for row in trained(measured)), 3)


class Slow:
    """Holds the answers of some agents (by number) to visits until `free` is set."""

    def __init__(self, *numbers: int, rounds: int = 1) -> None:
        self.numbers, self.left, self.free = numbers, rounds * len(numbers), asyncio.Event()

    async def __call__(self, request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path == "/visits" and (request.url.port or 0) - AGENT_PORT in self.numbers and self.left:
            self.left -= 1
            await self.free.wait()
        return await pass_on()


@pytest.mark.whole
async def test_a_seat_that_misses_the_deadline_is_late_and_takes_part_in_later_rounds(tmp_path: Path) -> None:
    wall_s = await generous_s()
    spec = spec_of(1, 0.01, round_deadline_s=wall_s / 0.01)
    done = await run(tmp_path, spec, agent_devices=(1,) * 6, tamper=Slow(4))
    first, second = done.rounds
    late = [row for row in first.seats if row.reason == "late"]
    assert [row.outcome for row in late] == ["failed"]
    assert [(failure.seat, failure.reason) for failure in first.failures] == [(late[0].seat, "late")]
    assert f"no answer within the {wall_s:g} s of the edge round" in first.failures[0].detail
    assert first.n_used == 5
    assert first.wall_s >= wall_s
    assert (late[0].simulated_s, late[0].measured_s is not None) == (0, True)
    at = next(edge for edge in first.edges if edge.edge == late[0].edge)
    assert at.simulated_s - at.down_s - at.up_s == pytest.approx(wall_s / 0.01)
    assert (second.n_used, second.failures) == (6, ())
    with_losses = small_spec(num_rounds=2, losses=[{"round_no": 1, "seats": [late[0].seat]}])
    assert (await run(tmp_path, with_losses)).info.model_sha256 == done.info.model_sha256


async def test_an_update_that_arrives_after_the_deadline_is_late(tmp_path: Path) -> None:
    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path == "/uploads" and request.url.port == AGENT_PORT + 2:
            await asyncio.Event().wait()
        return await pass_on()

    deadline_s = await generous_s() / 0.01
    spec = {**spec_of(1, 0.01, round_deadline_s=deadline_s), "algorithm": "probe_refuse"}
    done = await run(tmp_path, spec, agent_devices=(1,) * 6, tamper=tamper)
    late = [row for row in trained(done) if row.outcome == "failed"]
    assert [row.reason for row in late] == ["late"]
    assert sum(row.outcome == "used" for row in trained(done)) == 5


async def test_too_many_late_seats_miss_the_quorum_and_are_listed(tmp_path: Path) -> None:
    deadline_s = await generous_s() / 0.01
    async with federation(tmp_path, n_edges=1, agent_devices=(1,) * 3) as fed:
        fed.router.tamper = Slow(0, 1, rounds=100)
        spec = spec_of(1, 0.01, round_deadline_s=deadline_s, num_rounds=1, num_edges=1, num_devices=3)
        info = await fed.run(spec)
    assert info.status == "failed"
    assert "quorum of 2 of 3 tasks missed" in str(info.reason)
    assert str(info.reason).count("late (no answer within the ") == 2


async def test_a_visit_cancelled_by_an_edge_ends_at_the_agent(tmp_path: Path) -> None:
    """A device that would wait for an hour is free as soon as no edge waits for its answer."""
    deadline_s = 1 + await generous_s()
    async with federation(tmp_path, n_edges=1, agent_devices=(1, 1)) as fed:
        delays = {"profiles": [{"profile": {"delay_s": 1, "latency_s": 0}, "share": 0.5}]}
        delays["profiles"].append({"profile": {"delay_s": 3600, "latency_s": 0}, "share": 0.5})
        spec = small_spec(
            clock="real", num_edges=1, num_devices=2, num_rounds=1, round_deadline_s=deadline_s, devices=delays
        )
        info = await fed.run(spec)
        assert info.status == "completed"
        late = [row for row in (await fed.round(info.run, 1)).seats if row.reason == "late"]
        assert len(late) == 1
        hosts = [fed.apps[f"agent-{number}"].state.agent.host for number in range(2)]
        await fed.until(lambda: all(host.waiting == 0 for host in hosts))


@pytest.mark.slow
async def test_simulated_waiting_extends_the_time_limit_of_a_visit(tmp_path: Path) -> None:
    done = await run(tmp_path, spec_of(300, 0.02, num_rounds=1, timeouts={"visit_s": 5}), agent_devices=(1,) * 6)
    assert [row.outcome for row in trained(done)] == ["used"] * 6
    assert all((row.measured_s or 0) >= 6 for row in trained(done))


@pytest.mark.whole
async def test_an_edges_own_worker_waits_too(tmp_path: Path) -> None:
    spec = spec_of(1, 0.1, num_rounds=1, client="edge", schedule="equal", edge_link={"worker_sps": 50})
    done = await run(tmp_path, spec, agent_devices=(3, 3))
    workers = [row for row in trained(done) if row.agent is None]
    assert workers
    for row in workers:
        assert row.measured_s is not None
        assert row.measured_s >= row.simulated_s * 0.1 > 0


@pytest.mark.layout(n_edges=1, agent_devices=(1,))
async def test_an_agent_that_waits_stops_at_once(fed: Federation) -> None:
    run_id = await fed.submit(spec_of(3600, 1, num_edges=1, num_devices=1, num_rounds=1))
    host = fed.apps["agent-0"].state.agent.host
    await fed.until(lambda: host.n_visits == 1 and host.visiting is None)
    await asyncio.wait_for(fed.stop("agent-0"), 20)
    await fed.client.post(f"/runs/{run_id}/stop")
    assert (await fed.finish(run_id)).status == "stopped"


# ---- late in one of two exchanges

WIDE = {"name": "bofl", "params": {"phi": 1e6, "omega": 1e6}}
"""BOFL with margins so wide that every device is admitted."""


def bofl_spec(**more: Any) -> dict[str, Any]:
    """Returns a spec of BOFL on three devices of one edge with the real clock, accelerated a hundred times."""
    layout = {"num_devices": 3, "num_edges": 1, "algorithm": WIDE}
    return spec_of({"name": "uniform", "low": 1, "high": 20}, 0.01, **{**layout, **more})


def lasted_s(detail: RoundDetail) -> float:
    """Returns the simulated seconds of a round at its only edge, without the link to the cloud."""
    (edge,) = detail.edges
    return edge.simulated_s - edge.down_s - edge.up_s


@pytest.mark.whole
async def test_bofl_decides_without_an_overdue_report(tmp_path: Path) -> None:
    wall_s = await generous_s()
    limits = {"report_deadline_s": wall_s / 0.01, "round_deadline_s": 3 * wall_s / 0.01}
    done = await run(tmp_path, bofl_spec(**limits), n_edges=1, agent_devices=(1,) * 3, tamper=Slow(1))
    first, second = done.rounds
    (late,) = [row for row in first.seats if row.outcome != "used"]
    assert (late.outcome, late.reason, late.label, late.simulated_s, late.up_bytes) == ("failed", "late", None, 0, 0)
    assert [(failure.seat, failure.reason) for failure in first.failures] == [(late.seat, "late")]
    assert f"no answer within the {wall_s:g} s of the announcements of a dispatch" in first.failures[0].detail
    used = [row for row in first.seats if row.outcome == "used"]
    assert {row.label for row in used} == {"leader", "A"}
    for row in used:  # they wait for the decision and then upload
        assert row.wait_s > 0
        assert row.simulated_s == pytest.approx(row.down_s + row.compute_s + row.wait_s + row.up_s)
        assert limits["report_deadline_s"] < row.simulated_s < limits["round_deadline_s"]
        assert (row.measured_s or 0) < wall_s * 3
    assert lasted_s(first) == pytest.approx(max(row.simulated_s for row in used))
    assert first.wall_s >= wall_s
    assert ([row.outcome for row in second.seats], second.failures) == (["used"] * 3, ())
    assert lasted_s(second) < limits["report_deadline_s"]
    with_losses = bofl_spec(losses=[{"round_no": 1, "seats": [late.seat]}])
    assert (await run(tmp_path, with_losses, n_edges=1, agent_devices=(3,))).info.model_sha256 == done.info.model_sha256


@pytest.mark.whole
async def test_bofl_ends_a_round_without_an_overdue_upload(tmp_path: Path) -> None:
    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path == "/uploads" and request.url.port == AGENT_PORT + 1:
            await asyncio.Event().wait()
        return await pass_on()

    wall_s = await generous_s()
    spec = bofl_spec(round_deadline_s=wall_s / 0.01, num_rounds=1)
    done = await run(tmp_path, spec, n_edges=1, agent_devices=(1,) * 3, tamper=tamper)
    (detail,) = done.rounds
    (late,) = [row for row in detail.seats if row.outcome != "used"]
    assert (late.outcome, late.reason, late.label in ("leader", "A")) == ("failed", "late", True)
    assert f"no answer within the {wall_s:g} s of the edge round" in detail.failures[0].detail
    assert late.up_bytes == late.report_bytes > 0  # its report arrived and counts; its update did not arrive
    used = [row for row in detail.seats if row.outcome == "used"]
    assert all(late.simulated_s < row.simulated_s < wall_s / 0.01 for row in used)  # it waited for the decision
    assert len(used) == 2
    assert lasted_s(detail) == pytest.approx(wall_s / 0.01)


async def test_without_a_deadline_for_reports_a_round_that_waits_for_one_has_no_time_for_uploads(
    tmp_path: Path,
) -> None:
    deadline_s = await generous_s() / 0.01
    async with federation(tmp_path, n_edges=1, agent_devices=(1,) * 3) as fed:
        fed.router.tamper = Slow(1, rounds=100)
        info = await fed.run(bofl_spec(round_deadline_s=deadline_s))
    assert info.status == "failed"
    assert "quorum of 2 of 3 tasks missed" in str(info.reason)
    assert str(info.reason).count("late (no answer within the ") == 3


@pytest.mark.whole
async def test_the_edge_does_not_wait_for_a_device_that_drops(tmp_path: Path) -> None:
    """The edge learns of a drop at once: it decides without that device, and the others upload."""
    spec = bofl_spec(round_deadline_s=90_000, num_rounds=4, quorum=0.1)
    spec["devices"]["profile"]["drop_rate"] = 0.5
    done = await run(tmp_path, spec, n_edges=1, agent_devices=(3,))
    assert {row.reason for row in trained(done)} == {None, "dropped"}
    for detail in done.rounds:
        assert lasted_s(detail) == pytest.approx(max(row.simulated_s for row in detail.seats))
        assert all(row.simulated_s < 100 for row in detail.seats)


@pytest.mark.whole
async def test_an_overdue_evaluation_takes_no_simulated_time(tmp_path: Path) -> None:
    async def tamper(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        if request.url.path == "/visits" and (request.url.port or 0) >= AGENT_PORT:
            order = codec.read_header(request.content).record
            if (order["stage"]["round_no"], order["visits"][0]["task"]["kind"]) == (1, "evaluate"):
                await asyncio.Event().wait()
        return await pass_on()

    wall_s = await generous_s()
    spec = bofl_spec(algorithm="fedavg", round_deadline_s=wall_s / 0.01, held_out_fraction=0.34)
    done = await run(tmp_path, spec, n_edges=1, agent_devices=(1,) * 3, tamper=tamper)
    first = done.rounds[0]
    assert sorted((row.outcome, row.reason) for row in first.seats) == [("failed", "late")] + [("used", None)] * 2
    assert lasted_s(first) == pytest.approx(max(row.simulated_s for row in first.seats)) != wall_s / 0.01


# ---- specs that are refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time_scale": 0.1}, "time_scale needs clock: real"),
        ({"clock": "real", "late": "next_round", "round_deadline_s": 9}, "late: next_round needs clock: simulated"),
        (
            {"clock": "real", "overselection": 0.5, "select": "random", "fraction_train": 0.5},
            "overselection needs clock: simulated",
        ),
        (
            {"clock": "real", "time_scale": 0.001, "round_deadline_s": 5},
            "round_deadline_s 5 at time_scale 0.001 is 0.005 s of wall time",
        ),
        (
            {"clock": "real", "time_scale": 0.001, "report_deadline_s": 5, "algorithm": "bofl"},
            "report_deadline_s 5 at time_scale 0.001 is 0.005 s of wall time",
        ),
        ({"clock": "real", "round_deadline_s": 1e6}, "with clock: real it is 0.1 to 86400 s"),
        ({"clock": "reel"}, "clock: must be 'simulated' or 'real'"),
        ({"clock": "real", "time_scale": 0}, "time_scale: must be greater than 0"),
    ],
    ids=str,
)
def test_specs_that_the_real_clock_cannot_run_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as found:
        parse_spec(small_spec(**fields))
    assert message in found.value.detail
