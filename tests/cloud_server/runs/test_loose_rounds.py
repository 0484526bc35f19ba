"""A cloud that does not wait for all edges: runs beside an event-driven reference in plain Python, and faults."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from shared.federation.order_keys import read_order_key
from shared.wire import codec
from tests.cloud_server.runs.plain_flights import LATENCIES, SPEEDS, Cloud, Combine, by_samples, fedasync, fedbuff
from tests.federation import EDGE_PORT, Federation, Gate, PassOn, small_spec
from tests.shared.algorithms.conftest import small_models  # noqa: F401 - a fixture
from tests.shared.algorithms.layouts import Ended, ended, federation, ran, run
from tests.shared.algorithms.plain_linear import joined

EVEN: dict[str, Any] = {
    "devices": {"profile": {"up_bps": 1e15, "down_bps": 1e15, "latency_s": 0, "delay_s": 1e5}, "edge_latency_s": 0},
    "edge_link": {"name": "backhaul", "up_bps": 1e15, "down_bps": 1e15},
}
"""Devices and links of equal speed: against such delays the few bytes by which bodies differ take no time."""
THREE: dict[str, Any] = {"n_edges": 3, "agent_devices": (2, 4)}


ALL, TWO = {"mode": "asynchronous", "buffer": "all"}, {"mode": "semi_synchronous", "wanted": 2}


@pytest.mark.whole
@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("algorithm", "edges"), [("fedavg", ALL), ("scaffold", TWO), ("scaffold", ALL), ("fedavg", TWO)]
)
async def test_with_equal_speeds_and_constant_weights_all_edges_count_as_in_a_synchronous_run(
    algorithm: str, edges: dict[str, Any]
) -> None:
    spec = small_spec(num_rounds=2, algorithm=algorithm, **EVEN)
    plain, loose = await ran(spec, agent_devices=(6,)), await ran({**spec, "sync": {"edges": edges}})
    assert [detail.model_sha256 for detail in loose.rounds] == [detail.model_sha256 for detail in plain.rounds]
    lasted = [detail.simulated_s for detail in plain.rounds]
    assert [detail.simulated_s for detail in loose.rounds] == pytest.approx(lasted, rel=1e-12)
    assert loose.info.accuracy == plain.info.accuracy
    assert {row.staleness for detail in loose.rounds for row in detail.edges} == {0}


AVG, POLYNOMIAL = {"name": "fedavg"}, {"name": "polynomial", "a": 0.5}
HINGE = {"name": "hinge", "a": 2.0, "b": 0}
BUFF, ASYNC, MIXED = (
    {"name": name, "params": params}
    for name, params in (
        ("fedbuff", {"server_lr": 0.7}),
        ("fedasync", {"alpha": 1.0, "rho": 0.0}),
        ("fedasync", {"alpha": 0.6, "rho": 0.0}),
    )
)


@pytest.mark.matrix(5)
@pytest.mark.parametrize(
    ("mode", "edges", "algorithm", "combine"),
    [
        ("asynchronous", {"buffer": 2, "staleness": POLYNOMIAL}, AVG, by_samples),
        ("asynchronous", {"buffer": 3, "staleness": HINGE}, BUFF, fedbuff),
        ("asynchronous", {}, ASYNC, fedasync(1.0)),
        ("semi_synchronous", {"wanted": 2, "staleness": POLYNOMIAL}, AVG, by_samples),
        ("semi_synchronous", {"deadline_s": 2.3}, AVG, by_samples),
        ("asynchronous", {"staleness": POLYNOMIAL}, AVG, by_samples),
        ("asynchronous", {"buffer": "all", "staleness": POLYNOMIAL}, AVG, by_samples),
        ("asynchronous", {"buffer": 2, "staleness": POLYNOMIAL}, MIXED, fedasync(0.6)),
        ("semi_synchronous", {"wanted": 1}, AVG, by_samples),
        ("semi_synchronous", {"deadline_s": 0.9}, AVG, by_samples),
        ("semi_synchronous", {"wanted": 2, "deadline_s": 2.0}, AVG, by_samples),
    ],
)
async def test_a_run_is_that_of_the_reference(
    tmp_path: Path, mode: str, edges: dict[str, Any], algorithm: dict[str, Any], combine: Combine
) -> None:
    sync = {"edges": {"mode": mode, **edges}}
    done = await run(tmp_path, {**SPEEDS, "num_rounds": 7, "algorithm": algorithm, "sync": sync}, **THREE)
    plain = Cloud(done.experiment, combine).run()
    at_s = 0.0
    for detail, version in zip(done.rounds, plain.made, strict=True):
        at_s += detail.simulated_s
        assert at_s == pytest.approx(version.at_s, abs=1e-6)
        rows = [(row.home, row.staleness) for row in detail.edges]
        assert rows == [(edge, staleness) for edge, staleness, _ in version.answers]
        lasts = [lasts_s for _, _, lasts_s in version.answers]
        assert [row.staleness_s for row in detail.edges] == pytest.approx(lasts, abs=1e-6)
        assert detail.n_used == 2 * len(rows) == len(detail.seats)
        began = [version.at_s - detail.simulated_s + row.begin_s for row in detail.seats]
        assert min(began) >= -1e-6
    assert done.info.simulated_s == pytest.approx(plain.now_s, abs=1e-6)
    assert any(staleness for version in plain.made for _, staleness, _ in version.answers)
    model = joined(done.model)
    assert abs(model - plain.model).max() < 1e-6
    assert abs(model - joined(done.experiment.initial)).max() > 0.05
    assert done.info.bytes_up == sum(detail.bytes_up for detail in done.rounds)


# ---- wall time, pauses, crashes


ASYNCHRONOUS = {"edges": {"mode": "asynchronous", "buffer": 3}}
SEMI = {"edges": {"mode": "semi_synchronous", "wanted": 1}}


def uneven(**more: Any) -> dict[str, Any]:
    """Returns a spec of devices that remember and differ in speed; a quick edge answers twice while others do once."""
    spec = {**SPEEDS, "model": "mlp", "batch_size": 16, "algorithm": "scaffold", "num_rounds": 4}
    return {**spec, "sync": ASYNCHRONOUS, **more}


def simulated(done: Ended) -> list[dict[str, Any]]:
    """Returns the rounds without what wall time changes: nothing else may differ."""
    wall = {"wall_s", "testing_s", "socket_bytes", "attempts", "seats", "evaluation"}
    return [
        {**detail.model_dump(exclude=wall), "seats": [row.model_dump(exclude={"agent"}) for row in detail.seats]}
        for detail in done.rounds
    ]


@pytest.mark.whole
@pytest.mark.matrix
@pytest.mark.parametrize(("sync", "seed"), [(ASYNCHRONOUS, 1), (SEMI, 2)])
async def test_delays_of_answers_change_no_bit(tmp_path: Path, sync: dict[str, Any], seed: int) -> None:
    plain, draws = await ran(uneven(sync=sync), **THREE), np.random.default_rng(seed)
    assert max(row.staleness for detail in plain.rounds for row in detail.edges) > 0

    async def later(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        wait_s = draws.exponential(0.15) if request.url.path == "/rounds" else 0.0
        await asyncio.sleep(wait_s / 2)
        response = await pass_on()
        await asyncio.sleep(wait_s / 2)
        return response

    delayed = await run(tmp_path, uneven(sync=sync), tamper=later, **THREE)
    assert simulated(delayed) == simulated(plain)
    assert delayed.info.model_sha256 == plain.info.model_sha256


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    ("how", "sync", "edge", "order"),
    [
        ("crash", ASYNCHRONOUS, 0, 2), ("stop", SEMI, 0, 3), ("pause", ASYNCHRONOUS, 1, 3),
        ("crash", SEMI, 2, 1), ("stop", ASYNCHRONOUS, 2, 2), ("pause", SEMI, 2, 1),
    ],
)  # fmt: skip
async def test_a_run_interrupted_in_mid_flight_ends_with_the_same_bytes(
    tmp_path: Path, how: str, sync: dict[str, Any], edge: int, order: int
) -> None:
    spec = uneven(sync=sync)
    plain = await ran(spec, **THREE)
    async with federation(tmp_path, n_edges=3, agent_devices=(6,)) as fed:
        gate, run_id = await fed.submit_and_hold(spec, closed_at=order, path="/rounds", port=EDGE_PORT + edge)
        if how == "crash":
            await fed.stop("cloud")
            gate.open.set()
            await fed.start_cloud()
        else:
            await fed.control(run_id, how)
            if how == "pause":
                gate.open.set()
            await fed.until_status(run_id, "paused", "stopped", "completed")
            gate.open.set()
            if (await fed.info(run_id)).status != "completed":
                await fed.control(run_id, "resume")
        done = await ended(fed, run_id)
    assert simulated(done) == simulated(plain)
    assert done.info.model_sha256 == plain.info.model_sha256
    assert (done.info.accuracy, done.info.bytes_up, done.info.simulated_s) == (
        plain.info.accuracy,
        plain.info.bytes_up,
        plain.info.simulated_s,
    )


@pytest.mark.whole
async def test_orders_sent_again_after_a_crash_are_the_same_bytes(tmp_path: Path) -> None:
    sent: list[tuple[int, int, str]] = []
    reached = asyncio.Event()

    async def record(request: httpx2.Request, pass_on: PassOn) -> httpx2.Response:
        body = await request.aread() if request.url.path == "/rounds" else b""
        if body and codec.read_header(body).record["kind"] == "train":
            key = read_order_key(codec.read_header(body))
            sent.append((key.edge, key.round_no, codec.digest_of(body)))
            if len(sent) == 7:
                reached.set()
                await asyncio.sleep(3600)
        return await pass_on()

    async with federation(tmp_path, **THREE) as fed:
        fed.router.tamper = record
        run_id = await fed.submit(uneven())
        await reached.wait()
        await fed.restart_cloud()
        await ended(fed, run_id)
    orders = {(edge, number) for edge, number, _ in sent}
    assert {(edge, number) for edge, number, _ in sent[:7]} < orders
    assert len(orders) == len(set(sent)) < len(sent)


@pytest.mark.whole
async def test_earlier_models_are_kept_as_long_as_an_order_in_flight_carries_them(tmp_path: Path) -> None:
    """The first flight of edge 2 ends in version 6, its second in version 13."""
    kept, spec = [], {**SPEEDS, "sync": {"edges": "asynchronous"}, "num_rounds": 2}
    async with federation(tmp_path, **THREE) as fed:
        run_id = await fed.submit(spec)
        for more in (5, 5, 0):
            done = await ended(fed, run_id)
            stored = await fed.cloud.repository.checkpoint(run_id, done.experiment)
            assert stored is not None
            in_flight = {flight.version for flight in stored[0].flights}
            assert stored[0].states.keys() == in_flight - {done.info.rounds}
            kept.append(min(in_flight))
            if more:
                await add_rounds(fed, run_id, more)
    assert kept[0] == 0 < kept[1] < kept[2]


async def add_rounds(fed: Federation, run_id: str, n: int) -> None:
    assert (await fed.client.post(f"/runs/{run_id}/rounds", json={"num_rounds": n})).status_code == 200


@pytest.mark.whole
async def test_added_rounds_go_on_with_what_was_in_flight(tmp_path: Path) -> None:
    four = await ran(uneven(), **THREE)
    async with federation(tmp_path, **THREE) as fed:
        run_id = (await fed.run(uneven(num_rounds=2))).run
        await add_rounds(fed, run_id, 2)
        more = await ended(fed, run_id)
    assert simulated(more) == simulated(four)
    assert (more.info.model_sha256, more.info.accuracy) == (four.info.model_sha256, four.info.accuracy)


# ---- devices that are off


@pytest.mark.whole
async def test_an_edge_whose_devices_are_all_off_answers_when_the_first_is_on_again(tmp_path: Path) -> None:
    """The devices of edge 1 are off for 20 seconds, in which others make versions; it answers once in that time."""
    always, later = [[0.0, 1e6]], [[20.0, 1e6]]
    trace = {"name": "trace", "traces": [always, later, always]}
    devices = {**SPEEDS["devices"], "profile": {**SPEEDS["devices"]["profile"], "availability": trace}}
    sync = {"edges": {"mode": "asynchronous", "buffer": 2}}
    done = await run(tmp_path, {**SPEEDS, "num_rounds": 14, "devices": devices, "sync": sync}, **THREE)
    rows = [row for detail in done.rounds for row in detail.edges if row.home == 1]
    assert [(row.outcome, row.reason) for row in rows[:2]] == [("idle", "unavailable"), ("used", None)]
    assert rows[0].staleness_s == 20.0
    assert rows[0].staleness > 5
    assert {row.outcome for row in rows[1:]} == {"used"}


# ---- lost edges


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["asynchronous", "semi_synchronous"])
async def test_a_lost_edge_is_recorded_and_the_run_goes_on(tmp_path: Path, mode: str) -> None:
    edges = {"mode": mode, **({"buffer": 1} if mode == "asynchronous" else {"wanted": 1})}
    spec = uneven(num_rounds=10, sync={"edges": edges}, timeouts={"reseat_after_s": 600})
    async with federation(tmp_path, **THREE) as fed:
        _, run_id = await fed.submit_and_hold(spec, closed_at=2, path="/rounds", port=EDGE_PORT + 1)
        await fed.lose("edge-1")
        done = await ended(fed, run_id)
    failed = [(detail, row) for detail in done.rounds for row in detail.edges if row.outcome == "failed"]
    ((detail, row),) = failed
    assert (row.home, row.edge) == (1, "edge-2")
    assert row.staleness_s == pytest.approx(2 * LATENCIES[1], abs=1e-6)
    (failure,) = detail.failures
    home = [seat.number for seat in done.experiment.population.seats if seat.home_edge == 1]
    assert (failure.edge, list(failure.seats)) == ("edge-2", home)
    assert {seat.seat for seat in detail.seats if seat.outcome == "failed"} == set(home)
    later = [seat for after in done.rounds[detail.round_no :] for seat in after.seats if seat.seat in home]
    assert later
    assert {seat.edge for seat in later} <= {"edge-1", "edge-3"}
    assert all(row.outcome != "failed" for after in done.rounds[detail.round_no :] for row in after.edges)


@pytest.mark.whole
async def test_no_device_visits_two_edges_at_a_time_while_its_own_is_lost_and_when_that_is_back(tmp_path: Path) -> None:
    spec = uneven(num_rounds=16, sync={"edges": "asynchronous"}, timeouts={"reseat_after_s": 600})
    async with federation(tmp_path, **THREE) as fed:
        registry = fed.cloud.registry
        gate, run_id = await fed.submit_and_hold(spec, closed_at=2, path="/rounds", port=EDGE_PORT + 1)
        await fed.lose("edge-1")
        gate = Gate(fed, 3, "/rounds", EDGE_PORT)
        await gate.reached.wait()
        await fed.start_edge(1)
        await fed.until(lambda: len(registry.live_edges()) == 3)
        gate.open.set()
        done = await ended(fed, run_id)
    visits: dict[int, list[tuple[float, float, str]]] = {}
    at_s = 0.0
    for detail in done.rounds:
        for row in detail.seats:
            if row.outcome == "used":
                began_s = at_s + row.begin_s
                visits.setdefault(row.seat, []).append((began_s, began_s + row.simulated_s, row.edge))
        at_s += detail.simulated_s
    for found in visits.values():
        found.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(found))
    hosts = [edge for _, _, edge in visits[1]]
    first_away = next(at for at, edge in enumerate(hosts) if edge != "edge-2")
    assert first_away > 0
    assert "edge-2" in hosts[first_away:]


@pytest.mark.whole
async def test_a_run_that_loses_all_its_edges_fails_and_says_why(tmp_path: Path) -> None:
    async with federation(tmp_path, **THREE) as fed:
        _, run_id = await fed.submit_and_hold(
            uneven(timeouts={"ready_s": 1}), closed_at=2, path="/rounds", port=EDGE_PORT
        )
        for number in range(3):
            await fed.lose(f"edge-{number}")
        end = await fed.finish(run_id)
    assert end.status == "failed"
    assert end.reason is not None
    assert "edge" in end.reason


# ---- evaluations by simulated seconds


@pytest.mark.matrix(2)
@pytest.mark.parametrize("sync", [{}, {"edges": {"mode": "asynchronous"}}], ids=["synchronous", "asynchronous"])
async def test_the_first_version_after_each_multiple_of_seconds_is_evaluated(
    tmp_path: Path, sync: dict[str, Any]
) -> None:
    done = await run(tmp_path, {**SPEEDS, "num_rounds": 6, "eval_every_s": 3.0, "sync": sync}, **THREE)
    at_s, due = 0.0, []
    for detail in done.rounds:
        before, at_s = at_s, at_s + detail.simulated_s
        due.append(any(before < 3.0 * n <= at_s for n in range(1, 20)) or detail.round_no == 6)
        assert (detail.evaluation is not None) == due[-1]
        assert all(row.received_accuracy is None for row in detail.seats)
    assert sum(due) > 1
    if sync:
        assert sum(due) < 6
